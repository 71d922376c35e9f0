"""What a maker of counterfactual pictures is: requests in, pictures out, in the same order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True, slots=True)
class PictureRequest:
    """One picture that is wanted.

    Attributes:
        sample_id: of the caption row whose sentence was edited.
        sentence: the index of the edited sentence.
        role: "negative" or "positive".
        text: the edited sentence, which the picture shall show.
        image: file of the real picture.
        seed: of this picture's own random numbers.
    """

    sample_id: str
    sentence: int
    role: str
    text: str
    image: Path
    seed: int


@dataclass(frozen=True, slots=True)
class Made:
    """A picture in RGB, and what asked for it."""

    request: PictureRequest
    picture: Image


@dataclass(frozen=True, slots=True)
class Unmade:
    """A request that found no picture, and why."""

    request: PictureRequest
    reason: str


class Maker(Protocol):
    """Makes pictures. `settings_hash` is short and changes with all that changes a picture."""

    name: str

    @property
    def settings_hash(self) -> str:
        """Of all that decides a picture beside its request."""

    def make(self, requests: Sequence[PictureRequest]) -> Iterator[Made | Unmade]:
        """One answer for each request, in their order, as soon as it is there."""
