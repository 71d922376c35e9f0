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
    """An image for which a captioner is asked, with the key under which its answer is stored.

    `content` is the hash of its bytes, and what else determines its pixels.
    """

    key: str
    content: str
    root: Path
    image: str
    limits: Limits
    max_side: int

    def load(self) -> Image:
        """Load the image in RGB, upright, without metadata, resized to at most `max_side` pixels.

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
    """Interface of captioners: models that write captions of images."""

    name: ClassVar[str]
    """Value of `recaption.captioner` that selects it."""

    @property
    def model(self) -> str:
        """Name of the captioning model, for the table of captions."""

    @property
    def prompt(self) -> str:
        """Prompt that the model gets with each image; empty for a model without prompts."""

    @property
    def place(self) -> str:
        """Text for the log that says where the model runs, and whether images leave this machine.

        It is the end of a sentence that begins with their number.
        """

    def key(self, content: str) -> str:
        """Key under which the answer to an image is stored.

        Args:
            content: hash of its bytes, and what else determines its pixels.
        """

    def stored(self, keys: Iterable[str]) -> dict[str, Answer]:
        """Stored answers by key, for the given keys; keys without an answer are left out."""

    def check(self) -> None:
        """Check that the model can be used, before the first image is captioned.

        Raises:
            SettingsError: it cannot; names the YAML key.
        """

    def ask(self, questions: Sequence[Question]) -> Iterator[Answer | NoAnswer]:
        """Yield the model's answer to each question, in order, once it is stored."""
