"""What a maker of counterfactual images is: requests in, images out, in the same order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True, slots=True)
class ImageRequest:
    """One image that is wanted.

    Attributes:
        sample_id: of the caption row whose sentence was edited.
        sentence: the index of the edited sentence.
        role: "negative" or "positive".
        text: the edited sentence, which the image shall show.
        image: file of the real image.
        seed: of this image's own random numbers.
    """

    sample_id: str
    sentence: int
    role: str
    text: str
    image: Path
    seed: int


@dataclass(frozen=True, slots=True)
class Made:
    """An image in RGB, and what asked for it."""

    request: ImageRequest
    image: Image


@dataclass(frozen=True, slots=True)
class Unmade:
    """A request that found no image, and why."""

    request: ImageRequest
    reason: str


class Maker(Protocol):
    """Makes images. `settings_hash` is short and changes with all that changes an image."""

    name: str

    @property
    def settings_hash(self) -> str:
        """Of all that decides an image beside its request."""

    def make(self, requests: Sequence[ImageRequest]) -> Iterator[Made | Unmade]:
        """One answer for each request, in their order, as soon as it is there."""
