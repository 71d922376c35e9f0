"""Composite images: two images of one orientation, squashed to halves of one square input.

Source: CLIC, Sec. 3 and App. B.2: both halves resized (bicubic) to exactly half, joined.
"""

from __future__ import annotations

from typing import Literal

from PIL import Image

Axis = Literal["vertical", "horizontal"]


def orientation(width: int, height: int) -> Literal["wide", "tall"]:
    """`wide` if width >= height, else `tall`.

    Only images of equal orientation are joined.
    """
    return "wide" if width >= height else "tall"


def axis_of(width: int, height: int) -> Axis:
    """Axis along which two images are joined: vertical for wide, horizontal for tall images."""
    return "vertical" if orientation(width, height) == "wide" else "horizontal"


def half(image: Image.Image, axis: Axis, size: int) -> Image.Image:
    """Resize an image to half of a composite of `size` x `size` pixels, ignoring aspect ratio.

    Raises:
        ValueError: the size is odd, and has no half.
    """
    if size % 2:
        raise ValueError(f"a composite needs an input of even size, the model's is {size}")
    shape = (size, size // 2) if axis == "vertical" else (size // 2, size)
    return image.convert("RGB").resize(shape, Image.Resampling.BICUBIC)


def join(first: Image.Image, second: Image.Image, axis: Axis) -> Image.Image:
    """Composite of two half images: the first above (vertical) or to the left (horizontal)."""
    size = max(first.size)
    joined = Image.new("RGB", (size, size))
    joined.paste(first, (0, 0))
    joined.paste(second, (0, size // 2) if axis == "vertical" else (size // 2, 0))
    return joined


def compose(first: Image.Image, second: Image.Image, axis: Axis, size: int) -> Image.Image:
    """Resize two images to halves and join them to a composite of `size` x `size` pixels."""
    return join(half(first, axis, size), half(second, axis, size), axis)
