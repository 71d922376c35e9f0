"""What a method offers to the one training loop, which knows no method by name.

A method turns captions into views (tables on disk), rows of views into batches, and batches into
weighted loss terms. It says which towers it trains; the loop does the rest.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol

from torch import Tensor

from compo_pipeline.images.composites import Axis
from compo_pipeline.records import Caption, Counterfactual, Parse, View
from compo_pipeline.seeding import rng

if TYPE_CHECKING:
    from compo_pipeline.models.dense import DenseImages, DenseTexts, TextTokens

Tower = Literal["image", "text"]


@dataclass(frozen=True, slots=True)
class ImageInput:
    """What one place of an image batch shows: one file, or two joined along an axis.

    `made` says that it is no image of the data but a counterfactual's, and its path below their
    folder.
    """

    paths: tuple[str, ...]
    axis: Axis | None = None
    made: bool = False


def require_tower(trains: Sequence[Tower]) -> None:
    """Refuse an objective that freezes both towers.

    Raises:
        ValueError: nothing trains.
    """
    if not trains:
        raise ValueError("trains: expected [text], [image] or [image, text], got none")


class Drawing(NamedTuple):
    """What the views of one epoch are drawn from, beside the captions.

    Attributes:
        parses: first sentences by sample_id.
        language: name and version of the language pipeline, for provenance.
        seed: of every draw, with the epoch and the sample_id.
        epoch: number of the epoch.
        counterfactuals: edited captions by sample_id, for methods that train on them.
    """

    parses: Mapping[str, Parse]
    language: str
    seed: int
    epoch: int
    counterfactuals: Mapping[str, Sequence[Counterfactual]] = MappingProxyType({})

    def rng(self, what: str, caption: Caption) -> random.Random:
        """Decides what is drawn for a caption under a name of its own."""
        return rng(self.seed, what, self.epoch, caption.sample_id)


class Example(NamedTuple):
    """One row of training: the anchor's caption, and its view of this epoch."""

    caption: Caption
    view: View


class Term(NamedTuple):
    """One loss and its weight; the loop takes the weighted sum, once."""

    value: Tensor
    weight: float


LossTerms = Mapping[str, Term]


class Reader(Protocol):
    """What `collate` gets to read with: images and texts to tensors."""

    def images(self, images: Sequence[ImageInput]) -> Tensor:
        """Pixels [m, 3, H, W], or row numbers [m] of precomputed features."""

    def tokens(self, texts: Sequence[str]) -> Tensor:
        """Token ids [K, T]."""

    def spans(
        self, texts: Sequence[str], owners: Sequence[int], spans: Sequence[tuple[int, int]]
    ) -> Tensor:
        """Which tokens [K, T], bool, spell the characters `spans[k]` of `texts[owners[k]]`."""


class Encoder(Protocol):
    """What `loss` gets to encode with; a frozen tower's features may come from a cache."""

    @property
    def scale(self) -> Tensor:
        """exp(logit_scale), a scalar."""

    @property
    def bias(self) -> Tensor:
        """logit_bias, a scalar, where the method's own `bias` is not None."""

    def images(self, images: Tensor) -> Tensor:
        """Normalised embeddings [m, D] of what `Reader.images` gave."""

    def texts(self, tokens: Tensor) -> Tensor:
        """Normalised embeddings [K, D] of token ids [K, T]."""

    def dense_images(self, images: Tensor) -> DenseImages:
        """Embeddings and patch tokens of what `Reader.images` gave."""

    def dense_texts(self, tokens: Tensor) -> DenseTexts:
        """Embeddings and tokens in the joint space of token ids [K, T]."""

    def text_tokens(self, tokens: Tensor) -> TextTokens:
        """The same without a mask, of towers whose texts have no <sot> and <eot> too."""


class Method(Protocol):
    """A fine-tuning method: settings in, views, batches and losses out."""

    name: ClassVar[str]
    views_type: ClassVar[type]
    objective_type: ClassVar[type]
    objective: Any

    def __init__(self, views: Any, objective: Any) -> None:
        """Build it from its frozen settings: what decides the views, and what decides the loss.

        They are apart so that a change of a loss weight leaves the views as they are.
        """

    @property
    def trains(self) -> frozenset[Tower]:
        """The towers whose weights change."""

    @property
    def trains_scale(self) -> bool:
        """Whether logit_scale and logit_bias train along with the towers."""

    @property
    def reads_patches(self) -> bool:
        """Whether `loss` calls `Encoder.dense_images`; features kept of a frozen tower then hold
        its patch tokens.
        """

    @property
    def bias(self) -> float | None:
        """Where logit_bias starts on a base that has none (one trained with a softmax); None for
        a method that reads no bias.
        """

    @property
    def sentences(self) -> int:
        """How many sentences a caption should have; every method trains on one, and those that
        show more repeat it.
        """

    @property
    def parsed_sentences(self) -> int:
        """How many of a caption's sentences must be parsed, from the first on."""

    def views(self, captions: Sequence[Caption], drawing: Drawing) -> Iterator[View]:
        """The views of one epoch, one a caption at most, in the captions' order.

        A caption that cannot have a view (no partner of its orientation) yields none, and neither
        do captions that were not drawn, where a method draws among those of an image.
        """

    def needed(self, example: Example, step: int) -> Sequence[ImageInput]:
        """The images that an example shows in a step; what a feature cache precomputes."""

    def collate(self, examples: Sequence[Example], step: int, reader: Reader) -> Collated:
        """A batch of a step; `step` counts from 0 over the whole run."""

    def loss(self, encoder: Encoder, batch: Any) -> LossTerms:
        """The weighted loss terms of a batch."""


class Collated(NamedTuple):
    """A batch, a NamedTuple of tensors of the method's own, and what there is to report of it."""

    batch: Any
    counts: Mapping[str, int]
