"""Interfaces of caption editors and image generators: requests in, answers out, in the same order.

Both have a name, which the configuration uses, and a `settings_fingerprint`: a short hash of all
that changes an answer apart from its request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from compo_pipeline.core.records import Caption, Parse
from compo_pipeline.data.annotations import NO_ANNOTATIONS, Annotations

if TYPE_CHECKING:
    from PIL.Image import Image

# A negative changes the meaning of its caption, a positive keeps it.
Role = Literal["negative", "positive"]


@dataclass(frozen=True, slots=True)
class EditRequest:
    """A caption to edit, with its parse.

    `sentence` is its index among the sample's sentences.
    """

    sample_id: str
    sentence: int
    role: Role
    caption: str
    parse: Parse


@dataclass(frozen=True, slots=True)
class EditedCaption:
    """A caption after an edit that passed all checks.

    `detail` names the edit.
    """

    text: str
    detail: str


class CaptionEditor(Protocol):
    """Interface of caption editors, which make one minimal edit of each given caption."""

    @property
    def name(self) -> str:
        """Value of `counterfactuals.caption_editor` that selects this editor."""

    settings_fingerprint: str
    """Hash of everything except the captions that determines the edited texts."""

    @property
    def concurrent(self) -> bool:
        """Whether several processes may edit at once, since no server or model is shared."""

    def edit(self, requests: Sequence[EditRequest]) -> Iterator[EditedCaption | str]:
        """Yield an edited caption, or why there is none, for each request, in their order."""


@dataclass(frozen=True, slots=True)
class ImageRequest:
    """A request to generate an image of an edited sentence.

    Attributes:
        sample_id: id of the caption row whose sentence was edited.
        sentence: index of the edited sentence.
        role: "negative" or "positive".
        text: the edited sentence, which the image should show.
        image: file of the real image.
        seed: seed of the random numbers of this image.
    """

    sample_id: str
    sentence: int
    role: str
    text: str
    image: Path
    seed: int


class ImageGenerator(Protocol):
    """Interface of image generators, which make images of edited captions."""

    @property
    def name(self) -> str:
        """Value of `counterfactuals.image_generator` that selects this generator."""

    settings_fingerprint: str
    """Hash of everything except the requests that determines the images, up to rounding."""

    def generate(self, requests: Sequence[ImageRequest]) -> Iterator[Image | str]:
        """Yield an RGB image, or why there is none, for each request, in their order."""


@dataclass(frozen=True, slots=True)
class Opening:
    """Arguments to create a caption editor or an image generator, without its settings."""

    seed: int
    """`counterfactuals.seed`."""

    captions: Sequence[Caption] = ()
    """The rows whose sentences are edited."""

    root: Path = Path()
    """Folder of the real images."""

    state: Path = Path()
    """Folder where the answers of language models are stored."""

    generator_settings: Any = field(default_factory=dict)
    """Settings of the generator of the data, an object of its settings class; an empty mapping for
    data that are not generated."""

    annotations: Annotations = NO_ANNOTATIONS
    """Texts from a published table for these rows, for the caption editor `table`."""


@dataclass(frozen=True, slots=True)
class EditorEntry:
    """Registry entry of a caption editor: settings class, factory path and requirements."""

    settings: type
    """Class of the settings under its name."""

    path: str
    """Import path of the class or function that makes a `CaptionEditor` of settings, their YAML key
    (for errors) and an `Opening`."""

    negatives_setting: str = ""
    """Setting that lists the rules of the negatives; empty for an editor without such a list."""

    parses: bool = True
    """Whether it reads parses of the captions."""


@dataclass(frozen=True, slots=True)
class GeneratorEntry:
    """Registry entry of an image generator: settings class, factory path and requirements."""

    settings: type
    """Class of the settings under its name."""

    path: str
    """Import path of the class or function that makes an `ImageGenerator` of settings, their YAML
    key, an `Opening` and the opened caption editor."""

    editor: str | None = None
    """The caption editor whose edits it shows; None: any."""
