"""Images of two coloured halves, and captions that name both colours."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from PIL import Image

COLOURS = {
    "red": (220, 30, 30),
    "green": (30, 160, 40),
    "blue": (30, 50, 220),
    "yellow": (235, 220, 40),
    "black": (15, 15, 15),
    "white": (245, 245, 245),
}
THINGS = ("dog", "cat", "boat", "chair", "flag", "ribbon", "hat", "blanket", "pillow", "curtain")
"""So many that no few sequences of words tell captions from foils."""
WIDTH, HEIGHT = 64, 48
_NOISE = 12  # grey levels; no two images have equal bytes


@dataclass(frozen=True)
class TwoColours:
    """An image by its number: the colours of its halves, and captions that name them."""

    number: int

    @cached_property
    def _drawn(self) -> tuple[list[str], list[str]]:
        draw = random.Random(self.number)
        return draw.sample(list(COLOURS), 3), draw.sample(THINGS, 2)

    @property
    def colours(self) -> tuple[str, str]:
        """Of the left and of the right half."""
        left, right, _ = self._drawn[0]
        return left, right

    @property
    def absent(self) -> str:
        """A colour that is not in it."""
        return self._drawn[0][2]

    @property
    def captions(self) -> tuple[str, str]:
        """Two captions, in other words."""
        return self.described(*self.colours)

    def described(self, left: str, right: str) -> tuple[str, str]:
        """Two captions with these colours."""
        one, two = self._drawn[1]
        return (
            f"A {left} {one} next to a {right} {two}.",
            f"There is a {right} {two} behind the {left} {one}.",
        )

    @property
    def foils(self) -> tuple[str, str]:
        """The captions with a colour that is not in it."""
        return self.described(self.absent, self.colours[1])

    def image(self, *colours: str) -> Image.Image:
        """It, or an image of other colours with the same grain."""
        pixels = np.random.default_rng(self.number).normal(0, _NOISE, (HEIGHT, WIDTH, 3))
        left, right = colours or self.colours
        pixels[:, : WIDTH // 2] += COLOURS[left]
        pixels[:, WIDTH // 2 :] += COLOURS[right]
        return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))

    def write(self, path: Path) -> None:
        """Save it in the format that the name says."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.image().save(path)


Row = tuple[TwoColours, tuple[str, str]]
"""An image, and the captions that stand beside it."""


def rows(first: int, count: int) -> list[Row]:
    """Images from a number on, each with its own captions."""
    return [(image, image.captions) for image in map(TwoColours, range(first, first + count))]


def shuffle_images(files: Sequence[Path]) -> None:
    """Exchange the files of images, so that their captions are those of others."""
    contents = [file.read_bytes() for file in files]
    random.Random(0).shuffle(contents)
    for file, content in zip(files, contents, strict=True):
        file.write_bytes(content)
