"""Attention of a phrase over the patches of an image, and how much of each patch a region covers.

m images, K phrases, P patches in a grid of G x G, D width of the joint space.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from compo_pipeline.configuration.settings import SettingsError
from compo_pipeline.evaluation.analysis.cases import Case, Mask
from compo_pipeline.images.decoding import ImageError, Limits, load
from compo_pipeline.models.dense import FIX, attention, encode_images_densely
from compo_pipeline.models.encoding import encode_texts, scale_of
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.run.progress import track

Grid = NDArray[np.float32]
"""[G, G]."""


class Attention(NamedTuple):
    """Attention maps [G, G] of one phrase over one image; each map sums to 1.

    `plain` has no temperature, as in C2LIP's training, and is nearly uniform; `scaled` has a logit
    scale, as similarities do.
    """

    plain: Grid
    scaled: Grid


@dataclass(frozen=True, eq=False)
class AttentionResult:
    """Attention of one model for one phrase and image, and the region that it should focus on."""

    case: Case
    attention: Attention | None = None
    """None if the image could not be read."""
    covered: Grid | None = None
    """Share of each patch that the case's region covers; None if the region is unknown."""
    problem: str | None = None
    """Why the case cannot be measured."""


def attention_results(
    loaded: LoadedModel,
    cases: Sequence[Case],
    batch: int,
    workers: int,
    limits: Limits,
    scale: float | None = None,
) -> Iterator[AttentionResult]:
    """Yield one model's attention for every phrase-image case.

    Each image and each phrase is encoded once.

    Args:
        loaded: any model with features of its patches.
        cases: images and phrases, with or without regions.
        batch: images encoded at a time.
        workers: threads that decode images.
        limits: what is accepted as an image.
        scale: of the scaled attention, one for all models that are compared; None is the model's
            own, which training may have changed.
    """
    if not cases:
        return
    of_image: dict[tuple[Path, str], list[Case]] = {}
    for case in cases:
        of_image.setdefault((case.root, case.image), []).append(case)
    phrases = list(dict.fromkeys(case.phrase for case in cases))
    embedded = dict(zip(phrases, embed_phrases(loaded, phrases), strict=True))

    def prepare(place: tuple[Path, str]) -> _Decoded | str:
        try:
            image = load(*place, limits)
        except ImageError as error:
            return f"unreadable image ({error.reason})"
        return _Decoded(loaded.preprocess(image), image.size)

    places = list(of_image)
    groups = [places[k : k + batch] for k in range(0, len(places), batch)]
    with ThreadPoolExecutor(workers) as pool:
        for group in track(groups, len(groups), f"{loaded.name}: batches of images attended to"):
            grouped = [of_image[place] for place in group]
            yield from _batch_results(
                loaded, grouped, list(pool.map(prepare, group)), embedded, scale
            )


class _Decoded(NamedTuple):
    """Preprocessed pixels [3, H, H] of an image, and its original width and height."""

    pixels: Tensor
    size: tuple[int, int]


def _batch_results(
    loaded: LoadedModel,
    cases: Sequence[Sequence[Case]],
    found: Sequence[_Decoded | str],
    embedded: Mapping[str, Tensor],
    scale: float | None,
) -> Iterator[AttentionResult]:
    """Yield the attention results of a batch of images, with the error of an unreadable image."""
    readable = [
        (got, own) for got, own in zip(found, cases, strict=True) if not isinstance(got, str)
    ]
    maps: Iterator[list[Attention]] = iter(())
    if readable:
        pixels = torch.stack([got.pixels for got, _ in readable])
        phrases = [torch.stack([embedded[case.phrase] for case in own]) for _, own in readable]
        maps = iter(attend(loaded, pixels, phrases, scale))
    for got, own in zip(found, cases, strict=True):
        if isinstance(got, str):
            yield from (AttentionResult(case, problem=got) for case in own)
        else:
            for case, given in zip(own, next(maps), strict=True):
                yield _result_with_coverage(loaded, case, given, got.size)


def _result_with_coverage(
    loaded: LoadedModel, case: Case, given: Attention, size: tuple[int, int]
) -> AttentionResult:
    """Attention result of a case, with the share of each patch that its region covers."""
    region = case.region
    if region is None:
        return AttentionResult(case, given)
    if size != (region.width, region.height):
        return AttentionResult(case, given, problem="region of another size than the image")
    covered = coverage(loaded, region.mask(), len(given.plain))
    # The transform may crop the thing away.
    problem = None if covered.any() else "region outside of what the model sees"
    return AttentionResult(case, given, covered, problem)


@torch.inference_mode()
def embed_phrases(loaded: LoadedModel, phrases: Sequence[str], batch: int = 512) -> Tensor:
    """Normalised text embeddings [K, D] of phrases, in float32.

    Each is a text of its own.
    """
    device = loaded.device
    parts = [
        encode_texts(loaded.model, loaded.tokenize(list(phrases[k : k + batch])).to(device))
        for k in range(0, len(phrases), batch)
    ]
    return torch.cat(parts)


@torch.inference_mode()
def attend(
    loaded: LoadedModel, pixels: Tensor, phrases: Sequence[Tensor], scale: float | None = None
) -> list[list[Attention]]:
    """Attention maps of each image for its own phrases, computed in float32.

    bfloat16 would round most of it off.

    Args:
        loaded: a model with patch features in the joint space.
        pixels: [m, 3, H, W], as the model's transform gives them.
        phrases: [K, D] of each image, of `embed_phrases`.
        scale: of the scaled attention; None is the model's own.

    Raises:
        SettingsError: the model has no features of patches, or no square grid of them.
    """
    device = loaded.device
    patches = encode_images_densely(loaded.model, pixels.to(device), loaded.name).patches
    side = _grid_side(patches.shape[1], loaded.name)
    factors = (1.0, scale_of(loaded.model) if scale is None else scale)
    found = []
    for own, texts in zip(patches[:, None], phrases, strict=True):
        plain, scaled = (
            attention(own, factor * texts)[0].reshape(-1, side, side).cpu().numpy()
            for factor in factors
        )
        found.append([Attention(*maps) for maps in zip(plain, scaled, strict=True)])
    return found


def coverage(loaded: LoadedModel, mask: Mask, side: int) -> Grid:
    """Share [side, side], from 0 to 1, of each image patch that a region covers.

    The mask passes through the model's transform like the image. Pixels at the edge beyond the
    last patches are left out.

    Args:
        loaded: gives the transform.
        mask: [height, width] of the image.
        side: patches along an edge.
    """
    seen = transform_mask(loaded, mask)
    patch = len(seen) // side
    seen = seen[: patch * side, : patch * side]
    covered: Grid = seen.reshape(side, patch, side, patch).mean(axis=(1, 3))
    return covered


def transform_mask(loaded: LoadedModel, mask: Mask) -> Grid:
    """A region mask after the model's image transform, as values from 0 to 1, [H, H].

    H is the side of the model's input.
    """
    inside = Image.fromarray(mask).convert("L")
    black = Image.new("L", inside.size)
    pixels = loaded.preprocess(Image.merge("RGB", (inside, black, black)))
    # Padding of any colour is the same in both channels, which differ in the region alone.
    red, green = (pixels[k] * loaded.std[k] + loaded.mean[k] for k in (0, 1))
    seen: Grid = (red - green).clamp(0, 1).numpy()
    return seen


def _grid_side(patches: int, name: str) -> int:
    """Number of patches along one side of a square grid; raises an error if not square."""
    side = math.isqrt(patches)
    if side * side != patches:
        raise SettingsError(
            f"model.name: '{name}' has {patches} patches, expected a square grid of them; {FIX}"
        )
    return side
