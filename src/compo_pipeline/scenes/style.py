"""The look of a generator laid over an image, and the real image's look given back to it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

import numpy as np
from PIL import Image, ImageFilter

from compo_pipeline.images.style import adain


@dataclass(frozen=True)
class AdainSettings:
    """Whether the real image's channel statistics are carried over, see `images.style`.

    Attributes:
        weight: 0 leaves the image as it is, 1 gives it the real one's statistics.
        space: of the pixels; `none` leaves it out.
    """

    weight: float = 0.5
    space: Literal["pixels", "none"] = "none"

    def __post_init__(self) -> None:
        """Refuse a weight that is no share."""
        if not 0 <= self.weight <= 1:
            raise ValueError(f"weight must lie within 0 and 1, got {self.weight}")


def cast(image: Image.Image, strength: float, random_: random.Random) -> Image.Image:
    """Lay a foreign style over a whole image: softer, flatter, its colours tinted.

    All casts soften and flatten, each by as much as it draws; the tint is drawn channel by channel
    and goes either way.

    Args:
        image: in RGB.
        strength: 0 leaves the image as it is; at 1 nobody takes it for a real one, and red is
            still red.
        random_: draws the style.
    """
    soft = image.filter(ImageFilter.GaussianBlur(strength * random_.uniform(0.6, 1.4)))
    contrast = 1 - strength * random_.uniform(0.1, 0.25)
    gain = [1 + strength * random_.uniform(-0.12, 0.12) for _ in range(3)]
    offset = [strength * random_.uniform(-20, 20) for _ in range(3)]
    pixels = (np.asarray(soft, np.float32) - 128) * contrast + 128
    return _image(pixels * np.array(gain, np.float32) + np.array(offset, np.float32))


def towards(generated: Image.Image, real: Image.Image, weight: float) -> Image.Image:
    """The image under the channel statistics of a real one in RGB, mixed in by weight."""
    import torch

    content, style = (
        torch.from_numpy(np.array(image, np.float32)).permute(2, 0, 1)[None]
        for image in (generated, real)
    )
    return _image(adain(content, style, weight)[0].permute(1, 2, 0).numpy())


def _image(pixels: np.ndarray) -> Image.Image:
    return Image.fromarray(pixels.round().clip(0, 255).astype(np.uint8))
