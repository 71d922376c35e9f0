"""The image tower: what it sees, its losses by hand, resume, and the stop at a lost gradient."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file

from compo_pipeline.configuration.settings import SettingsError
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.run.compute import Compute
from compo_pipeline.training import checkpoint
from compo_pipeline.training.checkpoint import TrainingError
from compo_scenes.base_model import image_tower as tower
from compo_scenes.base_model.image_tower import (
    Readouts,
    TowerRecipe,
    binding_losses,
    tokens,
    train_tower,
)
from compo_scenes.base_model.supervision import boxes, truth
from compo_scenes.render import image
from compo_scenes.world import Scene, World


def test_the_tower_is_trained_on_what_the_model_will_see(fresh: LoadedModel, wide: Scene) -> None:
    squashed = image(wide).resize((64, 64), Image.Resampling.BICUBIC)
    raw = torch.from_numpy(np.asarray(squashed).copy()).permute(2, 0, 1)
    mean, std = (torch.tensor(v).view(3, 1, 1) * 255 for v in (fresh.mean, fresh.std))
    torch.testing.assert_close((raw - mean) / std, fresh.preprocess(image(wide)))


def test_the_mean_of_patch_tokens_through_the_head_is_the_image_embedding(
    fresh: LoadedModel, wide: Scene
) -> None:
    pixels = fresh.preprocess(image(wide))[None]
    with torch.no_grad():
        patches = tokens(fresh.model.visual, pixels)
        whole = fresh.model.encode_image(pixels)  # type: ignore[operator]
        pooled = fresh.model.visual.head(patches.mean(1))  # type: ignore[operator, union-attr]
    assert patches.shape == (1, 64, 128)
    torch.testing.assert_close(pooled, whole)


def test_a_readout_is_read_at_the_things_that_are_there(
    world: World, wide: Scene, tall: Scene
) -> None:
    readouts, told = Readouts(world, 5, 3), truth([boxes(wide), boxes(tall)], world, 1)
    embedding = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    read = readouts.of_thing(readouts.size, embedding, told)
    every = readouts.size(embedding * tower.READOUT_SCALE)
    expected = [every[m, kind * 3 : kind * 3 + 3] for m, kind in ((0, 1), (0, 2), (1, 1))]
    assert read.equal(torch.stack(expected))


def test_binding_losses_equal_the_loop(world: World, wide: Scene, tall: Scene) -> None:
    readouts, told = Readouts(world, 5, 3), truth([boxes(wide), boxes(tall)], world, 1)
    embedding = F.normalize(torch.randn(2, 3, generator=torch.Generator().manual_seed(0)), dim=-1)
    logits = readouts.pair(embedding * tower.READOUT_SCALE).detach()
    what = 0.0
    for m, n in itertools.product(range(2), range(16)):
        p = 1 / (1 + math.exp(-float(logits[m, n])))
        what -= math.log(p if told.pairs[m, n] else 1 - p) / 2
    places = readouts.of_thing(readouts.place, embedding, told).detach()
    where = sum(float((places[n] - told.place[n]).square().sum()) for n in range(3)) / 6
    got = binding_losses(readouts, embedding, told)
    assert got[0].item() == pytest.approx(what, rel=1e-5)
    assert got[1].item() == pytest.approx(where, rel=1e-5)


COMPUTE = Compute(torch.device("cpu"), "fp32")
TOWER = TowerRecipe(steps=4, batch_size=2, warmup=1, save_every=1, workers=0)


def weights(loaded: LoadedModel) -> dict[str, torch.Tensor]:
    return {k: v for k, v in loaded.model.state_dict().items() if k.startswith("visual.")}


@pytest.mark.slow
def test_an_interrupted_tower_ends_with_the_same_weights(
    fresh: LoadedModel,
    copy: Callable[[], LoadedModel],
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole, first, second = copy(), copy(), copy()
    train_tower(whole, world, TOWER, COMPUTE, seed=0, state=tmp_path / "whole.safetensors")

    forward, calls = tower._forward, itertools.count()

    def interrupted(*args: object) -> object:
        if next(calls) == 2:
            raise KeyboardInterrupt
        return forward(*args)  # type: ignore[arg-type]

    state = tmp_path / "state.safetensors"
    with monkeypatch.context() as patch:
        patch.setattr(tower, "_forward", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train_tower(first, world, TOWER, COMPUTE, seed=0, state=state)
    torch.rand(1)  # whatever else drew in between
    train_tower(second, world, TOWER, COMPUTE, seed=0, state=state)
    assert any(not v.equal(weights(fresh)[k]) for k, v in weights(second).items())
    for name, value in weights(whole).items():
        assert value.equal(weights(second)[name]), name
    saved, expected = load_file(state), load_file(tmp_path / "whole.safetensors")
    assert saved.keys() == expected.keys()
    assert all(saved[name].equal(expected[name]) for name in expected)

    again = copy()  # a finished one is only loaded
    with monkeypatch.context() as patch:
        patch.setattr(tower, "_forward", None)
        train_tower(again, world, TOWER, COMPUTE, seed=0, state=state)
    assert all(v.equal(weights(again)[k]) for k, v in weights(whole).items())

    for other, told in (
        ({"seed": 1}, "seed: 0 -> 1.*pretraining.seed=0$"),
        ({"settings": replace(TOWER, lr=1.0)}, r"tower.lr: 0.0015 -> 1.0"),
        ({"compute": replace(COMPUTE, precision="bf16")}, "pretraining.precision=fp32$"),
        ({"world": World()}, r"world\.\w+: "),
    ):
        arguments = {"world": world, "settings": TOWER, "compute": COMPUTE, "seed": 0}
        with pytest.raises(SettingsError, match=told):
            train_tower(copy(), state=state, **arguments | other)  # type: ignore[arg-type]


def test_a_loss_that_is_not_finite_stops_and_keeps_the_last_good_state(
    copy: Callable[[], LoadedModel], world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward, calls, spoilt = tower._forward, itertools.count(), copy()
    state = tmp_path / "state.safetensors"

    def lost(*args: object) -> object:
        loss, embedding = forward(*args)  # type: ignore[arg-type]
        return loss * (math.nan if next(calls) == 2 else 1), embedding

    monkeypatch.setattr(tower, "_forward", lost)
    with pytest.raises(TrainingError, match=r"step 2: loss.*stored in .*TowerRecipe\.lr"):
        train_tower(spoilt, world, TOWER, COMPUTE, seed=0, state=state)
    progress = checkpoint.read_progress(state)
    assert progress is not None and progress["step"] == 2
    saved = load_file(state)
    for name, parameter in spoilt.model.visual.named_parameters():  # type: ignore[union-attr]
        assert parameter.equal(saved[f"visual/{name}"]), name
