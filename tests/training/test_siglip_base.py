"""SigLIP's own towers under C2LIP and its control: they learn, and a broken run goes on."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.training.states import steps_done

from compo_pipeline.methods.c2lip import C2lip, C2lipObjective
from compo_pipeline.methods.clip import control_of
from compo_pipeline.methods.contract import Method, NoViewSettings
from compo_pipeline.models.loading import load
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.training.inputs import TrainingInputs
from compo_pipeline.training.loop import Job, train
from compo_pipeline.training.settings import OptimizerSettings

# A bias that would be seen: SigLIP brings its own, -10.
C2LIP = C2lip(NoViewSettings(), C2lipObjective(bias=-3.0))
ON_TOKENS = C2lip(NoViewSettings(), C2lipObjective(phrases="tokens", bias=-3.0))


class Broken(Exception):
    """The run ends here."""


@pytest.fixture
def plan(world: Any, tiny_siglip: Path, recipe: Any, tmp_path: Path) -> TrainingInputs:
    """Six steps of four rows on random crops; one table of views for both epochs."""
    settings = recipe(
        epochs=2,
        save_every=2,
        workers=1,
        crop_scale=(0.9, 1.0),
        optimizer=OptimizerSettings(lr=2e-3, lr_start=2e-4, lr_end=0.0, clip_norm=None),
    )
    views = world.drawn(C2LIP, tmp_path / "views", epochs=1)
    model = ModelSettings(f"local-dir:{tiny_siglip}")
    return TrainingInputs(
        world.captions, "data", views, world.root, model, settings, 0, tmp_path / "resume"
    )


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "open_clip_model.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "name"),
    [
        (C2LIP, "c2lip"),
        (ON_TOKENS, "c2lip"),
        (control_of(C2LIP), "siglip"),
    ],
    ids=["C2LIP", "C2LIP on pooled tokens", "SigLIP"],
)
def test_a_broken_run_ends_with_the_weights_of_one_that_was_not(
    plan: TrainingInputs, tiny_siglip: Path, tmp_path: Path, method: Method, name: str
) -> None:
    whole = replace(plan, resume=tmp_path / "other")
    curve = train(whole, Job(method, name, tmp_path / "whole"), lambda _: None).curve

    def stop(point: Mapping[str, Any]) -> None:
        if point["step"] == 3:
            raise Broken

    with pytest.raises(Broken):
        train(plan, Job(method, name, tmp_path / "resumed"), stop)
    assert steps_done(plan, method, name) == 2
    train(plan, Job(method, name, tmp_path / "resumed"), lambda _: None)

    base, found, again = (
        weights(folder) for folder in (tiny_siglip, tmp_path / "whole", tmp_path / "resumed")
    )
    assert base.keys() == found.keys() == again.keys()
    assert all(torch.equal(found[key], again[key]) for key in found)
    moved = {key for key in base if not torch.equal(base[key], found[key])}
    assert {"visual.trunk.attn_pool.kv.weight", "text.text_projection.bias"} <= moved
    assert {"visual.trunk.patch_embed.proj.weight", "text.token_embedding.weight"} <= moved
    # Its own bias is where it starts, and is trained.
    assert 0 < abs(found["logit_bias"].item() + 10.0) < 1
    losses = [point["loss"] for point in curve]
    assert len(losses) == 6 and sum(losses[-2:]) < sum(losses[:2])
    tokens = [load(folder).tokenize(["a red cat"]) for folder in (tiny_siglip, tmp_path / "whole")]
    assert torch.equal(*tokens)
