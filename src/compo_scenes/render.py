"""Scenes to images: anti-aliased sprites on a softly lit background, and foreign styles."""

from __future__ import annotations

import random
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from compo_pipeline.configuration.settings import Share, settings
from compo_pipeline.images.style import adain
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
    """Draw a scene's thing on the canvas in place; the part outside the image is cut off."""
    mask, light, pattern = sprite(thing.kind, thing.size_px, thing.pattern)
    place, cut = extent(thing, canvas.shape[1], canvas.shape[0])
    colour = np.array(COLOURS[thing.colour], np.float32) + np.array(thing.shade, np.float32)
    paint = colour * light[cut]
    paint += (np.array(second, np.float32) - paint) * pattern[cut]
    region = canvas[place]
    region += (paint - region) * mask[cut]


def render(scene: Scene) -> NDArray[np.uint8]:
    """Render a scene as an RGB array [height, width, 3]; equal scenes give equal pixels."""
    canvas = _background(scene.background, scene.width, scene.height) + scene.shade
    second = (46, 46, 50) if scene.background == "white" else (252, 252, 252)
    for thing in scene.things:
        _paint(canvas, thing, second)
    return canvas.clip(0, 255).astype(np.uint8)


def image(scene: Scene) -> Image.Image:
    """Render a scene as a PIL image."""
    return Image.fromarray(render(scene))


@settings
class SceneAdainSettings:
    """Settings of AdaIN: transfer of the real image's channel statistics.

    See `images.style`.
    """

    weight: Share = 0.5
    """0 leaves the image unchanged, 1 gives it the real one's statistics."""
    space: Literal["pixels", "none"] = "none"
    """Statistics of the pixels; `none`: no transfer."""


def cast(image: Image.Image, strength: float, random_: random.Random) -> Image.Image:
    """Apply a random foreign style to a whole image: blur, less contrast, a tint per channel.

    Args:
        image: in RGB.
        strength: 0 leaves the image unchanged; at 1 it is clearly not a real one, but red is
            still red.
        random_: draws the style.
    """
    soft = image.filter(ImageFilter.GaussianBlur(strength * random_.uniform(0.6, 1.4)))
    contrast = 1 - strength * random_.uniform(0.1, 0.25)
    gain = [1 + strength * random_.uniform(-0.12, 0.12) for _ in range(3)]
    offset = [strength * random_.uniform(-20, 20) for _ in range(3)]
    pixels = (np.asarray(soft, np.float32) - 128) * contrast + 128
    return _to_image(pixels * np.array(gain, np.float32) + np.array(offset, np.float32))


def mix_statistics(generated: Image.Image, real: Image.Image, weight: float) -> Image.Image:
    """Mix the channel statistics of a real RGB image into a generated image (AdaIN), by weight."""
    import torch

    content, style = (
        torch.from_numpy(np.array(image, np.float32)).permute(2, 0, 1)[None]
        for image in (generated, real)
    )
    return _to_image(adain(content, style, weight)[0].permute(1, 2, 0).numpy())


def _to_image(pixels: np.ndarray) -> Image.Image:
    """PIL image from float pixels in 0..255."""
    return Image.fromarray(pixels.round().clip(0, 255).astype(np.uint8))
