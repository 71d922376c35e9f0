"""COCO instances of scenes: the visible pixels of each thing."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compo_scenes.captions import PATTERN_WORDS, SIZE_WORDS, THING_WORDS, Phrase
from compo_scenes.render import extent
from compo_scenes.shapes import SHAPES, sprite
from compo_scenes.world import Scene, Thing

log = logging.getLogger(__name__)


def instances(scenes: Sequence[Scene], images: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """COCO instances of scenes: one annotation for each visible thing, with its mask.

    There is one category per kind of thing.

    A mask has the visible pixels, by column in COCO's uncompressed run lengths. Beside COCO's
    fields an annotation has `phrase`, which is true of this thing alone in its image. Things
    without such a phrase, or wholly hidden, are left out and counted in `info`.

    Args:
        scenes: scenes in the order of the images.
        images: COCO's entries of these images.
    """
    categories = {kind: number for number, kind in enumerate(SHAPES, 1)}
    annotations: list[dict[str, Any]] = []
    for scene, image in zip(scenes, images, strict=True):
        for thing, mask in zip(scene.things, visible(scene), strict=True):
            phrase = unambiguous(thing, scene)
            counts = _run_lengths(mask)
            area = sum(counts[1::2])
            if phrase is None or area == 0:
                continue
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": image["id"],
                    "category_id": categories[thing.kind],
                    "phrase": phrase,
                    "bbox": _bounding_box(mask),
                    "area": area,
                    "iscrowd": 0,
                    "segmentation": {"size": list(mask.shape), "counts": counts},
                }
            )
    left_out = sum(len(scene.things) for scene in scenes) - len(annotations)
    if left_out:
        log.warning(
            "%d things are left out: hidden, or without a phrase that is true of them alone",
            left_out,
        )
    return {
        "info": {"description": "Visible things of rendered scenes", "left_out": left_out},
        "images": list(images),
        "annotations": annotations,
        "categories": [
            {"id": number, "name": THING_WORDS.get(kind, (kind,))[0], "supercategory": "thing"}
            for kind, number in categories.items()
        ],
    }


def visible(scene: Scene) -> list[NDArray[np.bool_]]:
    """Mask [height, width] of each thing's pixels that no later thing covers.

    Half a pixel counts.
    """
    free = np.ones((scene.height, scene.width), bool)
    masks = []
    for thing in reversed(scene.things):
        place, cut = extent(thing, scene.width, scene.height)
        covered = sprite(thing.kind, thing.size_px, thing.pattern)[0][cut][..., 0] > 0.5
        mask = np.zeros_like(free)
        mask[place] = covered & free[place]
        free[place] &= ~covered
        masks.append(mask)
    return masks[::-1]


def unambiguous(thing: Thing, scene: Scene) -> str | None:
    """Shortest phrase ("a red ball") that is true of only one thing of the scene, or None."""
    for phrase in _phrases(thing):
        if sum(_is_true_of(phrase, other) for other in scene.things) == 1:
            return phrase.indefinite(None)
    return None


def _phrases(thing: Thing) -> Iterator[Phrase]:
    """Phrases that describe a thing, from only colour and kind to all its properties."""
    pattern = thing.pattern if thing.pattern in PATTERN_WORDS else None
    size = thing.size if thing.size in SIZE_WORDS else None
    yield Phrase(thing.kind, thing.colour)
    yield Phrase(thing.kind, thing.colour, pattern=pattern)
    yield Phrase(thing.kind, thing.colour, size=size, pattern=pattern)


def _is_true_of(phrase: Phrase, thing: Thing) -> bool:
    """Whether a phrase is true of a thing.

    Properties that are None are not compared.
    """
    return (
        phrase.kind == thing.kind
        and phrase.colour in (None, thing.colour)
        and phrase.size in (None, thing.size)
        and phrase.pattern in (None, thing.pattern)
    )


def _bounding_box(mask: NDArray[np.bool_]) -> list[int]:
    """Bounding box of a mask in pixels: left, top, width and height."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    left, top = int(columns[0]), int(rows[0])
    return [left, top, int(columns[-1]) - left + 1, int(rows[-1]) - top + 1]


def _run_lengths(mask: NDArray[np.bool_]) -> list[int]:
    """COCO run-length encoding of a mask, by column, starting with the pixels outside."""
    flat = mask.ravel(order="F")
    edges = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    lengths: list[int] = np.diff(edges, prepend=0, append=flat.size).tolist()
    return [0, *lengths] if flat[0] else lengths
