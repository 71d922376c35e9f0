"""Random resized crops for training, at the input's size.

Source: the training transform of the FSC-CLIP and C2LIP recipes, RandomResizedCrop as torchvision
defines it, bicubic, without a flip: a mirrored image would belie "left" and "right".
"""

from __future__ import annotations

import math
import random

from PIL import Image

Box = tuple[int, int, int, int]
"""Left, upper, right and lower edge in pixels; right and lower lie outside."""

# Width over height of a crop, before it becomes square.
RATIO = (3 / 4, 4 / 3)
_TRIES = 10


def random_resized_crop(
    image: Image.Image, size: int, scale: tuple[float, float], rng: random.Random
) -> Image.Image:
    """Random crop of an image, resized to a square of `size` x `size` pixels.

    Args:
        image: in RGB.
        size: side of the result.
        scale: least and largest share of the image's area.
        rng: random state; equal states give equal pixels.
    """
    box = crop_box(image.width, image.height, scale, rng)
    return image.crop(box).resize((size, size), Image.Resampling.BICUBIC)


def crop_box(width: int, height: int, scale: tuple[float, float], rng: random.Random) -> Box:
    """Random crop box: area uniform in `scale`, aspect ratio log-uniform, position uniform.

    Where ten draws do not fit, as in a panorama, it is the largest central part whose ratio is
    allowed.
    """
    bounds = math.log(RATIO[0]), math.log(RATIO[1])
    for _ in range(_TRIES):
        area = width * height * rng.uniform(*scale)
        ratio = math.exp(rng.uniform(*bounds))
        across, down = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < across <= width and 0 < down <= height:
            left, upper = rng.randint(0, width - across), rng.randint(0, height - down)
            return left, upper, left + across, upper + down
    return _central_box(width, height)


def _central_box(width: int, height: int) -> Box:
    """Largest centred crop box of an image whose aspect ratio is within `RATIO`."""
    ratio = min(max(width / height, RATIO[0]), RATIO[1])
    across = max(1, min(width, round(height * ratio)))
    down = max(1, min(height, round(width / ratio)))
    left, upper = (width - across) // 2, (height - down) // 2
    return left, upper, left + across, upper + down
