"""The drawn things as masks: vector outlines on a unit square, drawn large once, then scaled.

Each entry of `SHAPES` draws on a `Pen`, whose coordinates run from 0 to 1; `hole=True` cuts out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

MASTER = 512  # pixels of a mask before it is scaled down, which anti-aliases it


class Pen:
    """Draws filled shapes on a mask, in unit coordinates."""

    def __init__(self) -> None:
        self.image = Image.new("L", (MASTER, MASTER), 0)
        self._draw = ImageDraw.Draw(self.image)

    def oval(self, x0: float, y0: float, x1: float, y1: float, *, hole: bool = False) -> None:
        """Draw a filled ellipse in a bounding box, or cut it out with `hole`."""
        self._draw.ellipse([v * MASTER for v in (x0, y0, x1, y1)], fill=0 if hole else 255)

    def rectangle(self, x0: float, y0: float, x1: float, y1: float, *, hole: bool = False) -> None:
        """Draw a filled rectangle, or cut it out with `hole`."""
        self._draw.rectangle([v * MASTER for v in (x0, y0, x1, y1)], fill=0 if hole else 255)

    def polygon(self, *points: tuple[float, float]) -> None:
        """Draw a filled polygon with these corners."""
        self._draw.polygon([(x * MASTER, y * MASTER) for x, y in points], fill=255)


def _ball(pen: Pen) -> None:
    """Draw the mask of a ball with a pen."""
    pen.oval(0.02, 0.02, 0.98, 0.98)


def _box(pen: Pen) -> None:
    """Draw the mask of a box with a pen."""
    pen.rectangle(0.06, 0.06, 0.94, 0.94)


def _star(pen: Pen) -> None:
    """Draw the mask of a star with a pen."""
    turns = [(0.5 if i % 2 == 0 else 0.21, math.pi * i / 5) for i in range(10)]
    pen.polygon(*[(0.5 + r * math.sin(a), 0.52 - r * math.cos(a)) for r, a in turns])


def _heart(pen: Pen) -> None:
    """Draw the mask of a heart with a pen."""
    pen.oval(0.02, 0.06, 0.53, 0.57)
    pen.oval(0.47, 0.06, 0.98, 0.57)
    pen.polygon((0.065, 0.44), (0.935, 0.44), (0.5, 0.97))


def _ring(pen: Pen) -> None:
    """Draw the mask of a ring with a pen."""
    pen.oval(0.02, 0.02, 0.98, 0.98)
    pen.oval(0.26, 0.26, 0.74, 0.74, hole=True)


def _moon(pen: Pen) -> None:
    """Draw the mask of a moon with a pen."""
    pen.oval(0.05, 0.02, 0.95, 0.98)
    pen.oval(0.34, -0.05, 1.2, 0.86, hole=True)


def _house(pen: Pen) -> None:
    """Draw the mask of a house with a pen."""
    pen.polygon((0.5, 0.02), (1.0, 0.46), (0.0, 0.46))
    pen.rectangle(0.12, 0.45, 0.88, 0.98)
    pen.rectangle(0.4, 0.64, 0.6, 1.0, hole=True)


def _tree(pen: Pen) -> None:
    """Draw the mask of a tree with a pen."""
    pen.polygon((0.5, 0.0), (0.8, 0.36), (0.2, 0.36))
    pen.polygon((0.5, 0.14), (0.93, 0.76), (0.07, 0.76))
    pen.rectangle(0.41, 0.75, 0.59, 1.0)


def _fish(pen: Pen) -> None:
    """Draw the mask of a fish with a pen."""
    pen.oval(0.0, 0.2, 0.75, 0.8)
    pen.polygon((0.62, 0.5), (1.0, 0.15), (1.0, 0.85))
    pen.oval(0.14, 0.37, 0.25, 0.48, hole=True)


def _mug(pen: Pen) -> None:
    """Draw the mask of a mug with a pen."""
    pen.oval(0.5, 0.25, 1.0, 0.78)
    pen.oval(0.61, 0.37, 0.89, 0.66, hole=True)
    pen.rectangle(0.06, 0.1, 0.72, 0.95)


def _key(pen: Pen) -> None:
    """Draw the mask of a key (for a lock) with a pen."""
    pen.oval(0.0, 0.26, 0.48, 0.74)
    pen.oval(0.13, 0.39, 0.35, 0.61, hole=True)
    pen.rectangle(0.43, 0.42, 1.0, 0.58)
    pen.rectangle(0.68, 0.5, 0.78, 0.78)
    pen.rectangle(0.87, 0.5, 0.98, 0.83)


def _flower(pen: Pen) -> None:
    """Draw the mask of a flower with a pen."""
    for petal in range(6):
        x = 0.5 + 0.3 * math.sin(petal * math.pi / 3)
        y = 0.5 - 0.3 * math.cos(petal * math.pi / 3)
        pen.oval(x - 0.19, y - 0.19, x + 0.19, y + 0.19)
    pen.oval(0.35, 0.35, 0.65, 0.65, hole=True)


def _cloud(pen: Pen) -> None:
    """Draw the mask of a cloud with a pen."""
    pen.oval(0.0, 0.4, 0.46, 0.86)
    pen.oval(0.2, 0.12, 0.72, 0.72)
    pen.oval(0.54, 0.35, 1.0, 0.86)
    pen.rectangle(0.2, 0.6, 0.8, 0.86)


def _boat(pen: Pen) -> None:
    """Draw the mask of a boat with a pen."""
    pen.polygon((0.0, 0.65), (1.0, 0.65), (0.8, 0.98), (0.2, 0.98))
    pen.rectangle(0.45, 0.03, 0.53, 0.66)
    pen.polygon((0.57, 0.05), (0.96, 0.59), (0.57, 0.59))


def _arrow(pen: Pen) -> None:
    """Draw the mask of an arrow with a pen."""
    pen.polygon(
        (0.02, 0.36), (0.55, 0.36), (0.55, 0.08), (0.99, 0.5),
        (0.55, 0.92), (0.55, 0.64), (0.02, 0.64),
    )  # fmt: skip


def _cross(pen: Pen) -> None:
    """Draw the mask of a cross with a pen."""
    pen.rectangle(0.34, 0.02, 0.66, 0.98)
    pen.rectangle(0.02, 0.34, 0.98, 0.66)


def _triangle(pen: Pen) -> None:
    """Draw the mask of a triangle with a pen."""
    pen.polygon((0.5, 0.04), (0.99, 0.93), (0.01, 0.93))


def _diamond(pen: Pen) -> None:
    """Draw the mask of a diamond with a pen."""
    pen.polygon((0.5, 0.0), (0.86, 0.5), (0.5, 1.0), (0.14, 0.5))


def _mushroom(pen: Pen) -> None:
    """Draw the mask of a mushroom with a pen."""
    pen.oval(0.02, 0.05, 0.98, 1.0)
    pen.rectangle(0.0, 0.53, 1.0, 1.0, hole=True)
    pen.rectangle(0.36, 0.5, 0.64, 0.97)


def _bottle(pen: Pen) -> None:
    """Draw the mask of a bottle with a pen."""
    pen.rectangle(0.4, 0.0, 0.6, 0.3)
    pen.oval(0.24, 0.24, 0.76, 0.6)
    pen.rectangle(0.24, 0.42, 0.76, 0.98)


SHAPES: dict[str, Callable[[Pen], None]] = {
    "ball": _ball,
    "box": _box,
    "star": _star,
    "heart": _heart,
    "ring": _ring,
    "moon": _moon,
    "house": _house,
    "tree": _tree,
    "fish": _fish,
    "mug": _mug,
    "key": _key,
    "flower": _flower,
    "cloud": _cloud,
    "boat": _boat,
    "arrow": _arrow,
    "cross": _cross,
    "triangle": _triangle,
    "diamond": _diamond,
    "mushroom": _mushroom,
    "bottle": _bottle,
}


@cache
def _shape_masks(kind: str) -> tuple[Image.Image, Image.Image]:
    """Mask of a shape in full size, and a smaller mask of its inner part without the rim.

    The rim is about 4% of the side.
    """
    pen = Pen()
    SHAPES[kind](pen)
    inner = pen.image.resize((MASTER // 4, MASTER // 4), Image.Resampling.BOX)
    inner = inner.filter(ImageFilter.MinFilter(9))
    return pen.image, inner


def _unit_values(mask: Image.Image) -> NDArray[np.float32]:
    """Values of a mask image as a float array in 0..1."""
    return np.asarray(mask, np.float32) / np.float32(255)


def _pattern_share(pattern: str, side: int) -> NDArray[np.float32]:
    """Share of the second colour in each pixel of a pattern, [side, side] in 0..1."""
    if pattern == "solid":
        return np.zeros((side, side), np.float32)
    scale, pitch = 4, 14 * 4
    image = Image.new("L", (side * scale, side * scale), 0)
    draw = ImageDraw.Draw(image)
    if pattern == "striped":
        for y in range(pitch // 4, side * scale, pitch):
            draw.rectangle([0, y, side * scale, y + pitch // 2], fill=255)
    else:
        radius = pitch * 0.29
        for row, y in enumerate(range(pitch // 2, side * scale + pitch, pitch)):
            for x in range((row % 2) * pitch // 2, side * scale + pitch, pitch):
                draw.ellipse([x - radius, y - radius, x + radius, y + radius], fill=255)
    small = image.resize((side, side), Image.Resampling.BOX)
    return _unit_values(small)


@cache
def sprite(
    kind: str, side: int, pattern: str
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """Mask, light and pattern arrays of a drawn thing, each [side, side, 1] in 0..1.

    Light darkens the rim and falls off downwards, so that things look solid.
    """
    full, inner = _shape_masks(kind)
    mask = _unit_values(full.resize((side, side), Image.Resampling.BOX))
    core = _unit_values(inner.resize((side, side), Image.Resampling.BILINEAR))
    light = (0.68 + 0.32 * core) * np.linspace(1.06, 0.9, side, dtype=np.float32)[:, None]
    return mask[..., None], light[..., None], (_pattern_share(pattern, side) * core)[..., None]
