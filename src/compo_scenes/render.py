"""Scenes to images: anti-aliased sprites on a softly lit background."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from compo_scenes.shapes import sprite
from compo_scenes.world import BACKGROUNDS, COLOURS, Scene, Thing

Window = tuple[slice, slice]
"""Rows and columns."""


@cache
def _background(name: str, width: int, height: int) -> NDArray[np.float32]:
    """Pixels of a plain background, a little lighter at the top, [height, width, 3] in 0..255."""
    light = np.linspace(1.02, 0.96, height, dtype=np.float32)[:, None, None]
    colour = np.array(BACKGROUNDS[name], np.float32)
    return np.broadcast_to(colour * light, (height, width, 3)).copy()


def extent(thing: Thing, width: int, height: int) -> tuple[Window, Window]:
    """Row and column slices of the image that a thing covers, and the same part of its sprite."""
    side = thing.size_px
    left, top = thing.x - side // 2, thing.y - side // 2
    x0, y0 = max(left, 0), max(top, 0)
    x1, y1 = min(left + side, width), min(top + side, height)
    return np.s_[y0:y1, x0:x1], np.s_[y0 - top : y1 - top, x0 - left : x1 - left]


def _paint(canvas: NDArray[np.float32], thing: Thing, second: tuple[int, int, int]) -> None:
    """Draw a scene's thing on the canvas in place.

    The part outside the image is cut off.
    """
    mask, light, pattern = sprite(thing.kind, thing.size_px, thing.pattern)
    place, cut = extent(thing, canvas.shape[1], canvas.shape[0])
    colour = np.array(COLOURS[thing.colour], np.float32) + np.array(thing.shade, np.float32)
    paint = colour * light[cut]
    paint += (np.array(second, np.float32) - paint) * pattern[cut]
    region = canvas[place]
    region += (paint - region) * mask[cut]


def render(scene: Scene) -> NDArray[np.uint8]:
    """Render a scene as an RGB array [height, width, 3].

    Equal scenes give equal pixels.
    """
    canvas = _background(scene.background, scene.width, scene.height) + scene.shade
    second = (46, 46, 50) if scene.background == "white" else (252, 252, 252)
    for thing in scene.things:
        _paint(canvas, thing, second)
    return canvas.clip(0, 255).astype(np.uint8)


def image(scene: Scene) -> Image.Image:
    """Render a scene as a PIL image."""
    return Image.fromarray(render(scene))
