"""The text tower's batches, the stop at a lost gradient, and linear probes."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from compo_pipeline.core.compute import Compute
from compo_pipeline.models.loading import LoadedModel
from compo_scenes.base_model import text_tower as base
from compo_scenes.base_model.supervision import boxes, truth
from compo_scenes.base_model.text_tower import BaseRecipe, pairs_of_scenes, probe
from compo_scenes.world import Scene, World

COMPUTE = Compute(torch.device("cpu"), "fp32")


def test_near_duplicates_exchange_places(world: World) -> None:
    pairs = pairs_of_scenes(world, 60, seed=0)
    assert len(pairs) == 60
    twins = [(scene, twin) for scene, twin in pairs if twin]
    assert 20 < len(twins) < 60
    for scene, twin in twins:
        assert scene.split == twin.split == "train"
        assert twin.content == scene.content
        assert twin.things != scene.things


def test_near_duplicates_share_a_batch(fresh: LoadedModel, world: World) -> None:
    settings = BaseRecipe(scenes=12, batch_size=8, duplicates=1.0)
    data = base._Captioned(fresh, world, settings, COMPUTE, seed=0)
    assert data.features.shape == (len(data.scenes), 192)
    chosen, texts = data.batch(3)
    assert data.batch(3) == (chosen, texts)
    assert len(chosen) == len(texts) == 8
    twin = {row[0]: row[1] for row in data.rows if len(row) == 2}
    for n, scene in enumerate(chosen[:-1]):
        assert scene not in twin or chosen[n + 1] == twin[scene]
    assert any(scene in twin for scene in chosen)


@pytest.mark.slow
def test_probes_find_what_is_there_and_nothing_in_noise(world: World) -> None:
    shown, unseen = (
        list(itertools.islice(world.scenes(0, split, "probe", 2), 150))
        for split in ("train", "val")
    )

    def oracle(scenes: list[Scene]) -> torch.Tensor:
        """An embedding that holds pairs and places linearly."""
        told = truth([boxes(scene) for scene in scenes], world, 1)
        places = torch.zeros(len(scenes), 4, 2)
        places[told.owner, told.kind] = told.place
        return F.normalize(torch.cat([told.pairs, places.flatten(1)], 1), dim=-1)

    def noise(scenes: list[Scene]) -> torch.Tensor:
        drawn = torch.randn(len(scenes), 24, generator=torch.Generator().manual_seed(0))
        return F.normalize(drawn, dim=-1)

    found = probe(oracle(shown), shown, oracle(unseen), unseen, world, steps=150)
    guessed = probe(noise(shown), shown, noise(unseen), unseen, world, steps=150)
    assert min(found.values()) > 0.9, found
    assert max(guessed.values()) < 0.45, guessed
