"""Cached features of a frozen tower equal those that it gives again."""

from typing import Any

import pytest
import torch

from compo_pipeline.core.compute import Compute
from compo_pipeline.methods.contract import ImageInput
from compo_pipeline.models.dense import encode_images_densely
from compo_pipeline.models.encoding import encode_images
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.training import features
from compo_pipeline.training.features import embed
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
