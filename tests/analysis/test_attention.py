"""Maps of attention, and regions on their way through a model's transform."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image

from compo_pipeline.configuration.settings import SettingsError
from compo_pipeline.evaluation.analysis import attention
from compo_pipeline.evaluation.analysis.attention import (
    attend,
    coverage,
    embed_phrases,
    transform_mask,
)
from compo_pipeline.models.dense import encode_images_densely
from compo_pipeline.models.loading import LoadedModel, load


@pytest.fixture(scope="module")
def loaded(tiny_clip: Path) -> LoadedModel:
    """A random model that sees 32 x 32 pixels in 2 x 2 patches."""
    return load(tiny_clip)


def with_transform(loaded: LoadedModel, **settings: Any) -> LoadedModel:
    config = PreprocessCfg(size=(32, 32), mean=loaded.mean, std=loaded.std, **settings)
    return replace(loaded, preprocess=image_transform_v2(config, is_train=False))


def mask(height: int, width: int, rows: slice, columns: slice) -> np.ndarray:
    found = np.zeros((height, width), bool)
    found[rows, columns] = True
    return found


def test_phrases_are_embedded_alike_in_any_batch(loaded: LoadedModel) -> None:
    phrases = ["a red ball", "a box", "a small blue house with a red door"]
    found = embed_phrases(loaded, phrases, batch=2)
    torch.testing.assert_close(found, embed_phrases(loaded, phrases))
    torch.testing.assert_close(found.norm(dim=-1), torch.ones(3))


def test_each_image_gets_the_attention_of_its_own_phrases(loaded: LoadedModel) -> None:
    pixels = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    phrases = embed_phrases(loaded, ["a red ball", "a box", "two cups"])
    found = attend(loaded, pixels, [phrases[:1], phrases[1:]])
    assert [len(own) for own in found] == [1, 2]
    with torch.no_grad():
        patches = encode_images_densely(loaded.model, pixels, "tiny").patches
        scale = float(loaded.model.logit_scale.exp())
    for m, k, maps in ((0, 0, found[0][0]), (1, 1, found[1][0]), (1, 2, found[1][1])):
        seen = patches[m] / patches[m].norm(dim=-1, keepdim=True)
        cosines = (seen @ phrases[k]).numpy()
        for given, factor in ((maps.plain, 1.0), (maps.scaled, scale)):
            expected = np.exp(factor * cosines) / np.exp(factor * cosines).sum()
            # Row by row: the second patch is the one to the right.
            np.testing.assert_allclose(given, expected.reshape(2, 2), rtol=1e-4)
    assert scale > 10 and not np.allclose(found[0][0].plain, found[0][0].scaled, rtol=1e-3)


def test_coverage_is_the_share_of_each_patch(loaded: LoadedModel) -> None:
    np.testing.assert_allclose(
        coverage(loaded, mask(32, 32, slice(0, 16), slice(16, 32)), 2), [[0, 1], [0, 0]]
    )
    half = coverage(loaded, mask(32, 32, slice(0, 8), slice(0, 16)), 2)
    np.testing.assert_allclose(half, [[0.5, 0], [0, 0]], atol=0.02)


def test_a_squashed_image_squashes_its_regions(loaded: LoadedModel) -> None:
    right = mask(60, 120, slice(None), slice(60, 120))
    np.testing.assert_allclose(coverage(loaded, right, 2), [[0, 1], [0, 1]], atol=0.03)


def test_a_cropped_image_crops_its_regions(loaded: LoadedModel) -> None:
    cropping = with_transform(loaded, resize_mode="shortest")
    edge = mask(32, 64, slice(None), slice(0, 15))
    assert not coverage(cropping, edge, 2).any()
    left = mask(32, 64, slice(None), slice(0, 32))
    np.testing.assert_allclose(coverage(cropping, left, 2), [[1, 0], [1, 0]], atol=0.02)


@pytest.mark.parametrize("fill", [0, 200])
def test_padding_is_no_part_of_a_region(loaded: LoadedModel, fill: int) -> None:
    padding = with_transform(loaded, resize_mode="longest", fill_color=fill)
    whole = coverage(padding, mask(32, 64, slice(None), slice(None)), 4)
    np.testing.assert_allclose(whole, np.float32([[0], [1], [1], [0]]) * np.ones(4), atol=0.01)


def test_a_mask_takes_the_way_of_its_image(loaded: LoadedModel) -> None:
    """What is bright in an image is what its region covers, whatever the transform."""
    region = mask(50, 90, slice(10, 35), slice(20, 70))
    for mode in ("squash", "shortest", "longest"):
        model = with_transform(loaded, resize_mode=mode)
        pixels = model.preprocess(Image.fromarray(region).convert("RGB"))[2]
        bright = (pixels * model.std[2] + model.mean[2]).clamp(0, 1)
        np.testing.assert_allclose(transform_mask(model, region), bright, atol=1e-6)


def test_pixels_that_no_patch_reaches_are_left_out(loaded: LoadedModel) -> None:
    # Three patches of ten pixels: the last two rows and columns belong to none.
    found = coverage(loaded, mask(32, 32, slice(20, 32), slice(0, 10)), 3)
    np.testing.assert_allclose(found, [[0, 0, 0], [0, 0, 0], [1, 0, 0]], atol=1e-6)


def test_patches_in_no_square_are_refused(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def three(model: Any, pixels: Any, name: str) -> Any:
        dense = encode_images_densely(model, pixels, name)
        return dense._replace(patches=dense.patches[:, :3])

    monkeypatch.setattr(attention, "encode_images_densely", three)
    with pytest.raises(SettingsError, match="has 3 patches, expected a square grid"):
        attend(loaded, torch.zeros(1, 3, 32, 32), [embed_phrases(loaded, ["a box"])])
