"""Features of frozen towers: kept ones equal fresh ones, and runs share them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.conftest import equal, weights

from compo_pipeline.core.compute import Compute
from compo_pipeline.methods.clip import Clip, ClipObjective
from compo_pipeline.methods.contract import ImageInput, NoViewSettings
from compo_pipeline.methods.fsc_clip import FscClip, FscClipObjective, FscClipViews
from compo_pipeline.models.dense import encode_images_densely
from compo_pipeline.models.encoding import encode_images
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.training import features
from compo_pipeline.training.features import embed
from compo_pipeline.training.inputs import TrainingInputs
from compo_pipeline.training.loop import Job, train
from compo_pipeline.training.preprocessing import ModelPreprocessor

CPU = torch.device("cpu")


@pytest.fixture
def images(world: Any) -> list[ImageInput]:
    names = [row.image for row in world.captions]
    joined = [ImageInput((names[i], names[i + 1]), "vertical") for i in range(0, 8, 2)]
    return [*joined, *(ImageInput((name,)) for name in names)]


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-6), ("bf16", 2e-2)])
def test_kept_features_are_fresh_ones(
    tiny: LoadedModel, world: Any, images: list[ImageInput], precision: Any, tolerance: float
) -> None:
    reader = ModelPreprocessor(tiny, world.root)
    tiny.model.train()
    embedded = embed(images, tiny, reader, compute=Compute(CPU, precision), workers=0)
    with torch.no_grad():
        fresh = encode_images(tiny.model.eval(), reader.images(images))
    values = embedded["values"]
    assert values.dtype == torch.float32 and not values.requires_grad
    torch.testing.assert_close(values, fresh, atol=tolerance, rtol=0)
    torch.testing.assert_close(values.norm(dim=1), torch.ones(16))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_features_do_not_hang_on_the_images_beside(
    tiny: LoadedModel,
    world: Any,
    images: list[ImageInput],
    precision: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(features, "BATCH", 7)
    reader = ModelPreprocessor(tiny, world.root)
    together = embed(images, tiny, reader, compute=Compute(CPU, precision), workers=0)
    for some in (slice(5, None), slice(None, None, -2), slice(3, 4)):
        apart = embed(images[some], tiny, reader, compute=Compute(CPU, precision), workers=0)
        assert torch.equal(apart["values"], together["values"][range(16)[some]])


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_patch_tokens_are_kept_beside_the_same_embeddings(
    tiny: LoadedModel, world: Any, images: list[ImageInput], precision: Any
) -> None:
    """To the bit: a control that is resumed alone embeds without patches what its method's run
    embedded with them.
    """
    reader = ModelPreprocessor(tiny, world.root)
    plain, dense = (
        embed(images, tiny, reader, compute=Compute(CPU, precision), workers=0, patches=patches)
        for patches in (False, True)
    )
    assert plain.keys() == {"values"} and torch.equal(plain["values"], dense["values"])
    assert dense["patches"].shape == (16, 4, 16)
    with torch.no_grad(), Compute(CPU, precision).autocast():
        fresh = encode_images_densely(tiny.model.eval(), reader.images(images), tiny.name)
    torch.testing.assert_close(dense["patches"].float(), fresh.patches, atol=2e-2, rtol=0)
    halves = [
        embed(some, tiny, reader, compute=Compute(CPU, precision), workers=0, patches=True)
        for some in (images[:5], images[5:])
    ]
    assert torch.equal(torch.cat([half["patches"] for half in halves]), dense["patches"])


CLIP = Clip(NoViewSettings(), ClipObjective())


@pytest.fixture
def plan(plan: TrainingInputs, world: Any, tmp_path: Path) -> TrainingInputs:
    """On kept features, over plain captions."""
    settings = replace(plan.settings, cache_features=True)
    views = world.drawn(CLIP, tmp_path / "views")
    return replace(plan, settings=settings, views=views, features=tmp_path / "features")


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images were embedded, call by call."""
    calls, embed = [], features.embed

    def counting(images: Any, *given: Any, **named: Any) -> dict[str, torch.Tensor]:
        calls.append(len(images))
        return embed(images, *given, **named)

    monkeypatch.setattr(features, "embed", counting)
    return calls


def run(plan: TrainingInputs, name: str, method: Any = CLIP) -> dict[str, torch.Tensor]:
    """Of a run of its own."""
    alone = replace(plan, resume=plan.resume / name)
    train(alone, Job(method, name, alone.resume / "out"), lambda _: None)
    return weights(alone.resume / "out")


def test_a_second_run_embeds_nothing_and_ends_the_same(
    plan: TrainingInputs, embedded: list[int]
) -> None:
    first = run(plan, "first")
    second = run(plan, "second")
    assert embedded == [12]
    alone = run(replace(plan, features=None), "alone")
    assert embedded == [12, 12]
    assert equal(first, second) and equal(first, alone)


def test_patches_are_embedded_for_a_method_that_reads_them(
    plan: TrainingInputs, world: Any, embedded: list[int], tmp_path: Path
) -> None:
    method = FscClip(FscClipViews(), FscClipObjective(trains=("text",)))
    plan = replace(plan, views=world.drawn(method, tmp_path / "fsc"))
    run(plan, "fsc_clip", method)
    run(plan, "again", method)
    assert embedded == [12]
    run(plan, "clip")
    assert embedded == [12, 12]


def test_what_decides_features_keeps_them_apart(
    plan: TrainingInputs, embedded: list[int], tiny_model: Callable[..., Path]
) -> None:
    run(plan, "first")
    run(replace(plan, data_hash="other data"), "data")
    run(replace(plan, model=ModelSettings(f"local-dir:{tiny_model(5, 5)}")), "tower")
    run(replace(plan, settings=replace(plan.settings, precision="bf16")), "precision")
    assert embedded == [12] * 4
    # Another text tower is none of the images' business.
    run(replace(plan, model=ModelSettings(f"local-dir:{tiny_model(6, 5)}")), "text")
    assert embedded == [12] * 4


def test_more_images_are_added(plan: TrainingInputs, embedded: list[int], tmp_path: Path) -> None:
    few = replace(plan, settings=replace(plan.settings, max_steps=1))
    run(few, "few")
    run(plan, "all")
    assert embedded == [4, 8]
    run(plan, "again")
    assert len(embedded) == 2
    assert len(list((tmp_path / "features").rglob("*.safetensors"))) == 2


def test_a_look_at_the_model_changes_nothing(plan: TrainingInputs) -> None:
    """Shown whenever the state is saved, ready to be evaluated."""
    plain = run(plan, "plain")
    seen = []

    def look(step: int, loaded: LoadedModel) -> None:
        assert not loaded.model.training and not torch.is_grad_enabled()
        torch.rand(3)
        seen.append((step, loaded.model.text_projection.sum().item()))

    folder = plan.resume / "out"
    train(plan, Job(CLIP, "clip", folder), lambda _: None, look)
    assert [step for step, _ in seen] == [2, 4, 6] and len({value for _, value in seen}) == 3
    assert equal(plain, weights(folder))


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
