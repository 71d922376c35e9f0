"""The interface of captioners: questions about images in, answers out, in the same order.

A captioner stores each answer as it comes, under a key that covers the image's bytes, the prompt,
the model, and all settings that change an answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

from compo_pipeline.chat.answers import Answer
from compo_pipeline.chat.endpoint import NoAnswer
from compo_pipeline.images import decoding
from compo_pipeline.images.decoding import Limits

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True, slots=True)
class Question:
    """An image to caption: the file below a root, and the key of its answer.

    `content` is the hash of its bytes, and what else determines its pixels.
    """

    key: str
    content: str
    root: Path
    image: str
    limits: Limits
    max_side: int

    def load(self) -> Image:
        """The image upright, in RGB, at most `max_side` pixels long, without metadata.

        Raises:
            ImageError: it can no longer be read.
        """
        from PIL import Image

        image = decoding.load(self.root, self.image, self.limits)
        # Bicubic takes 1.6 to 1.8 times as long, for images that the model makes smaller still.
        size = (self.max_side, self.max_side)
        image.thumbnail(size, Image.Resampling.BILINEAR, reducing_gap=1.5)
        # Pillow would write a comment of the original into a copy's file.
        image.info.clear()
        return image


class Captioner(Protocol):
    """Writes captions of images."""

    name: ClassVar[str]
    """Value of `recaption.captioner` that selects it."""

    @property
    def model(self) -> str:
        """Name of the model, as the table of captions has it."""

    @property
    def prompt(self) -> str:
        """The text that the model gets with each image; empty for a model without prompts."""

    @property
    def place(self) -> str:
        """Where the model is, and whether the images leave this machine, as the end of a sentence
        that begins with their number.
        """

    def key(self, content: str) -> str:
        """Key of the answer to an image.

        Args:
            content: hash of its bytes, and what else determines its pixels.
        """

    def stored(self, keys: Iterable[str]) -> dict[str, Answer]:
        """The stored answers of those keys that have one."""

    def check(self) -> None:
        """Check that the model can be used, before the first image is captioned.

        Raises:
            SettingsError: it cannot; names the YAML key.
        """

    def ask(self, questions: Sequence[Question]) -> Iterator[Answer | NoAnswer]:
        """The answer to each question, in their order; stored before it is returned."""
