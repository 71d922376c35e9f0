"""Interface of a fine-tuning method; the training loop depends on this alone.

A method turns captions into views (tables on disk), rows of views into batches, and batches into
weighted loss terms. It names the towers that it trains; the loop does the rest.

Shapes: m images, K texts, T tokens, D width of the joint space.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from compo_pipeline.configuration.settings import plain, settings
from compo_pipeline.images.composites import Axis
from compo_pipeline.run.seeding import rng
from compo_pipeline.storage.annotations import NO_ANNOTATIONS, Annotations
from compo_pipeline.storage.records import Caption, Counterfactual, Parse, View
from compo_pipeline.storage.tables import ById, Groups, Table

if TYPE_CHECKING:
    from torch import Tensor

    from compo_pipeline.models.dense import DenseImages, DenseTexts, TextTokens

Tower = Literal["image", "text"]
Need = Literal["patches", "tokens", "marked_tokens"]
"""What a loss may read of a base beside embeddings of images and texts: patches, tokens of texts,
and tokens of texts that open with <sot> and close with <eot>, all in the joint space."""
# Setting of an objective: the towers that train, at least one.
Towers = Annotated[tuple[Literal["image", "text"], ...], Field(min_length=1)]


@settings
class NoViewSettings:
    """Settings of the views of a method that has none."""


@dataclass(frozen=True, slots=True)
class ImageInput:
    """One image of a batch: a file, or two files joined along an axis."""

    paths: tuple[str, ...]
    axis: Axis | None = None

    counterfactual: bool = False
    """Whether the path is of a counterfactual's image, below their own folder."""


class ViewContext(NamedTuple):
    """Inputs for sampling one epoch's views, besides the captions."""

    parses: Mapping[str, Parse]
    """First sentences by sample_id."""

    language: str
    """Name and version of the language pipeline, for provenance."""

    seed: int
    """Of every draw, with the epoch and the sample_id."""

    epoch: int

    counterfactuals: Mapping[str, Sequence[Counterfactual]] = MappingProxyType({})
    """Edited captions by sample_id, for methods that train on them."""

    sentences: Mapping[str, Sequence[Parse]] = MappingProxyType({})
    """Further sentences by sample_id, for methods that ask for them."""

    annotations: Annotations = NO_ANNOTATIONS
    """Texts of others, in place of those that the method would make."""

    @classmethod
    def of(
        cls,
        parses: Iterable[Parse],
        language: str,
        seed: int,
        counterfactuals: Mapping[str, Sequence[Counterfactual]],
        annotations: Annotations = NO_ANNOTATIONS,
    ) -> ViewContext:
        """From parses of first and further sentences, for the first epoch."""
        table = Table.of(parses, Parse)
        own = np.asarray(table.column("sentence")) == 0
        further = {} if own.all() else Groups(table)
        return cls(ById(table.where(own)), language, seed, 0, counterfactuals, further, annotations)

    def parse(self, caption: Caption, sentence: int) -> Parse | None:
        """The parse of a sentence of a caption; None if it is a later one and was not parsed."""
        if sentence == 0:
            return self.parses[caption.sample_id]
        further = self.sentences.get(caption.sample_id, ())
        return next((parse for parse in further if parse.sentence == sentence), None)

    def rng(self, purpose: str, caption: Caption) -> random.Random:
        """The random generator of one caption in this epoch, for one purpose."""
        return rng(self.seed, purpose, self.epoch, caption.sample_id)


Sampler = Callable[[Caption], View | None]
"""The view of a caption, None where it has none."""


class Example(NamedTuple):
    """One row of training: the anchor's caption, and its view of this epoch."""

    caption: Caption
    view: View


class Term(NamedTuple):
    """One loss and its weight; the loop takes the weighted sum, once."""

    value: Tensor
    weight: float


LossTerms = Mapping[str, Term]


class Collated(NamedTuple):
    """A batch, a NamedTuple of tensors of the method's own, and counts to report."""

    batch: Any
    counts: Mapping[str, int]


class Preprocessor(Protocol):
    """Images and texts to tensors, for `collate`."""

    def images(self, images: Sequence[ImageInput]) -> Tensor:
        """Pixels [m, 3, H, W], or row numbers [m] of precomputed features."""

    def tokens(self, texts: Sequence[str]) -> Tensor:
        """Token ids [K, T]."""

    def spans(
        self, texts: Sequence[str], owners: Sequence[int], spans: Sequence[tuple[int, int]]
    ) -> Tensor:
        """Which tokens [K, T], bool, spell the characters `spans[k]` of `texts[owners[k]]`."""


class Encoder(Protocol):
    """The model's towers, for `loss`; a frozen tower's features may be precomputed."""

    @property
    def memory(self) -> MutableMapping[str, Tensor]:
        """What a loss carries from one step of a training to the next, without a gradient; saved
        and restored with the weights.
        """

    @property
    def scale(self) -> Tensor:
        """exp(logit_scale), a scalar."""

    @property
    def bias(self) -> Tensor:
        """logit_bias, a scalar, where the method's own `bias` is not None."""

    def images(self, images: Tensor) -> Tensor:
        """Normalised embeddings [m, D] of what `Preprocessor.images` gave."""

    def texts(self, tokens: Tensor) -> Tensor:
        """Normalised embeddings [K, D] of token ids [K, T]."""

    def dense_images(self, images: Tensor) -> DenseImages:
        """Embeddings and patch tokens of what `Preprocessor.images` gave."""

    def dense_texts(self, tokens: Tensor) -> DenseTexts:
        """Embeddings and tokens in the joint space of token ids [K, T]."""

    def text_tokens(self, tokens: Tensor) -> TextTokens:
        """The same without a mask, of towers whose texts have no <sot> and <eot> too."""


def embed_texts(encoder: Encoder, tokens: Tensor) -> Tensor:
    """Normalised embeddings [..., D] of token ids [..., T] of any number of dimensions."""
    return encoder.texts(tokens.flatten(0, -2)).view(*tokens.shape[:-1], -1)


class Method:
    """A fine-tuning method: settings in, views, batches and losses out.

    The settings of the views and of the objective are apart, so that a change of a loss weight
    leaves the views as they are.
    """

    name: ClassVar[str]
    """In the registry."""

    views_type: ClassVar[type] = NoViewSettings
    """Settings class of the views."""

    objective_type: ClassVar[type]
    """Settings class of the objective; has `trains`, the towers that train."""

    negatives_setting: ClassVar[str | None] = None
    """Setting of the views that lists the rules of the hard negatives; None for a method without
    such a list."""

    sentences: ClassVar[int] = 1
    """How many sentences a caption should have; a method that shows more than there are repeats
    them."""

    def __init__(self, views: Any, objective: Any) -> None:
        self.view_settings, self.objective = views, objective

    @property
    def configuration(self) -> dict[str, Any]:
        """All settings, with their defaults, as YAML has them."""
        return {"views": plain(self.view_settings), "objective": plain(self.objective)}

    @property
    def trains(self) -> frozenset[Tower]:
        """The towers whose weights change."""
        return frozenset(self.objective.trains)

    @property
    def trains_scale(self) -> bool:
        """Whether logit_scale and logit_bias train along with the towers: as the objective's
        setting `trains_scale` says, if it has one.
        """
        return bool(getattr(self.objective, "trains_scale", True))

    @property
    def needs(self) -> Mapping[Need, str]:
        """What `loss` reads of the base by `Encoder.dense_images` (patches), `text_tokens` (tokens)
        and `dense_texts` (marked tokens); to the settings that do without, for errors. A base that
        lacks it is refused before a run.
        """
        return {}

    @property
    def annotations(self) -> frozenset[str]:
        """Fields of `AnnotationColumns` that views can take from an external table; a table with
        anything else (`views.from_table`) is refused before a run.
        """
        return frozenset()

    @property
    def annotated_sentences(self) -> int | None:
        """How many sentences of a row such texts are looked for; None for all."""
        return 1

    @property
    def uses_patches(self) -> bool:
        """Whether precomputed features hold patches."""
        return "patches" in self.needs

    @property
    def memory_lasts_an_epoch(self) -> bool:
        """Whether what the loss carries from step to step is forgotten at the start of an epoch."""
        return False

    @property
    def bias(self) -> float | None:
        """Where logit_bias starts on a base that has none (one trained with a softmax): the
        objective's setting `bias`; None for a method without a bias.
        """
        return getattr(self.objective, "bias", None)

    def sampler(self, captions: Sequence[Caption], context: ViewContext) -> Sampler:
        """A function that gives the view of one caption in one epoch.

        A caption that cannot have a view (no partner of its orientation) has none; nor has one
        that was not drawn, where a method draws among the captions of an image.

        Args:
            captions: all rows that train, among which partners are drawn.
            context: what else views are drawn from.
        """
        raise NotImplementedError

    def anchors(self, captions: Table[Caption]) -> NDArray[np.bool_]:
        """Which captions [n] have a view, the same in every epoch; by default all.

        Several sources are mixed by it: a method whose sampler gives some captions no view says
        here which.

        Args:
            captions: all rows that train.
        """
        return np.ones(len(captions), bool)

    def views(self, captions: Sequence[Caption], context: ViewContext) -> Iterator[View]:
        """The views of one epoch, one a caption at most, in the captions' order."""
        return filter(None, map(self.sampler(captions, context), captions))

    def images(self, example: Example, step: int) -> Sequence[ImageInput]:
        """The images that an example shows in a step; by default the caption's own."""
        return (ImageInput((example.caption.image,)),)

    def collate(
        self, examples: Sequence[Example], step: int, preprocessor: Preprocessor
    ) -> Collated:
        """A batch of a step; `step` counts from 0 over the whole run."""
        raise NotImplementedError

    def objective_name(self, batch: Any) -> str:
        """The name under which the loss of a batch is logged, too, where batches alternate between
        objectives: a curve of the loss alone would mix them. Empty for one objective.
        """
        return ""

    def loss(self, encoder: Encoder, batch: Any) -> LossTerms:
        """The weighted loss terms of a batch."""
        raise NotImplementedError
