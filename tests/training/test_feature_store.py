"""Features of frozen towers, shared by runs."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from compo_pipeline.methods.clip import Clip, ClipObjective
from compo_pipeline.methods.contract import NoViewSettings
from compo_pipeline.methods.fsc_clip import FscClip, FscClipObjective, FscClipViews
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.training import features
from compo_pipeline.training.inputs import TrainingInputs
from compo_pipeline.training.loop import Job, train

CLIP = Clip(NoViewSettings(), ClipObjective())


@pytest.fixture
def plan(world: Any, tiny_clip: Path, recipe: Any, tmp_path: Path) -> TrainingInputs:
    """Six steps on kept features, over plain captions."""
    settings = recipe(cache_features=True, save_every=2)
    views = world.drawn(CLIP, tmp_path / "views")
    model = ModelSettings(f"local-dir:{tiny_clip}")
    inputs = world.captions, "data", views, world.root, model, settings
    return TrainingInputs(*inputs, 0, tmp_path / "resume", features=tmp_path / "features")


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images were embedded, call by call."""
    calls, embed = [], features.embed

    def counting(images: Any, *given: Any, **named: Any) -> dict[str, torch.Tensor]:
        calls.append(len(images))
        return embed(images, *given, **named)

    monkeypatch.setattr(features, "embed", counting)
    return calls


def weights(plan: TrainingInputs, name: str, method: Any = CLIP) -> dict[str, torch.Tensor]:
    """Of a run of its own."""
    alone = replace(plan, resume=plan.resume / name)
    train(alone, Job(method, name, alone.resume / "out"), lambda _: None)
    return load_file(alone.resume / "out" / "open_clip_model.safetensors")


def test_a_second_run_embeds_nothing_and_ends_the_same(
    plan: TrainingInputs, embedded: list[int]
) -> None:
    first = weights(plan, "first")
    second = weights(plan, "second")
    assert embedded == [12]
    alone = weights(replace(plan, features=None), "alone")
    assert embedded == [12, 12]
    for other in (second, alone):
        assert all(torch.equal(first[key], other[key]) for key in first)


def test_patches_are_embedded_for_a_method_that_reads_them(
    plan: TrainingInputs, world: Any, embedded: list[int], tmp_path: Path
) -> None:
    method = FscClip(FscClipViews(), FscClipObjective(trains=("text",)))
    plan = replace(plan, views=world.drawn(method, tmp_path / "fsc"))
    weights(plan, "fsc_clip", method)
    weights(plan, "again", method)
    assert embedded == [12]
    weights(plan, "clip")
    assert embedded == [12, 12]


def test_what_decides_features_keeps_them_apart(
    plan: TrainingInputs, embedded: list[int], tiny_model: Callable[..., Path]
) -> None:
    weights(plan, "first")
    weights(replace(plan, data_hash="other data"), "data")
    weights(replace(plan, model=ModelSettings(f"local-dir:{tiny_model(5, 5)}")), "tower")
    weights(replace(plan, settings=replace(plan.settings, precision="bf16")), "precision")
    assert embedded == [12] * 4
    # Another text tower is none of the images' business.
    weights(replace(plan, model=ModelSettings(f"local-dir:{tiny_model(6, 5)}")), "text")
    assert embedded == [12] * 4


def test_more_images_are_added(plan: TrainingInputs, embedded: list[int], tmp_path: Path) -> None:
    few = replace(plan, settings=replace(plan.settings, max_steps=1))
    weights(few, "few")
    weights(plan, "all")
    assert embedded == [4, 8]
    weights(plan, "again")
    assert len(embedded) == 2
    assert len(list((tmp_path / "features").rglob("*.safetensors"))) == 2


def test_a_look_at_the_model_changes_nothing(plan: TrainingInputs) -> None:
    """Shown whenever the state is saved, ready to be evaluated."""
    plain = weights(plan, "plain")
    seen = []

    def look(step: int, loaded: LoadedModel) -> None:
        assert not loaded.model.training and not torch.is_grad_enabled()
        torch.rand(3)
        seen.append((step, loaded.model.text_projection.sum().item()))

    folder = plan.resume / "out"
    train(plan, Job(CLIP, "clip", folder), lambda _: None, look)
    assert [step for step, _ in seen] == [2, 4, 6] and len({value for _, value in seen}) == 3
    found = load_file(folder / "open_clip_model.safetensors")
    assert all(torch.equal(plain[key], found[key]) for key in plain)


def test_an_image_tower_that_trains_is_none_of_the_bases(
    plan: TrainingInputs, tiny: LoadedModel
) -> None:
    """Who keeps embeddings by tower must not take it for one."""
    seen = []

    def look(step: int, loaded: LoadedModel) -> None:
        seen.append(loaded.image_fingerprint)

    both = Clip(NoViewSettings(), ClipObjective(("image", "text")))
    for method in (both, CLIP):
        train(plan, Job(method, f"{len(seen)}", plan.resume / "out"), lambda _: None, look)
    assert len({tiny.image_fingerprint, *seen[:3]}) == 4
    assert set(seen[3:]) == {tiny.image_fingerprint}
