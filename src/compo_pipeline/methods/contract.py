"""Interface of a fine-tuning method.

The training loop depends on this alone.

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

from compo_pipeline.core.records import Caption, Counterfactual, Parse, View
from compo_pipeline.core.seeding import rng
from compo_pipeline.core.settings import plain, settings
from compo_pipeline.core.tables import ById, Groups, Table
from compo_pipeline.data.annotations import NO_ANNOTATIONS, Annotations
from compo_pipeline.data.images.composites import Axis

if TYPE_CHECKING:
    from torch import Tensor, nn

    from compo_pipeline.models.dense import DenseImages, DenseTexts, TextTokens

Tower = Literal["image", "text"]
Need = Literal["patches", "tokens", "marked_tokens", "text_projection"]
"""What a method may need of a base beside embeddings of images and texts: patches, tokens of texts,
and tokens of texts that open with <sot> and close with <eot>, all in the joint space; a text tower
that ends in a linear projection."""
HEAD = "method_head"
"""Name under which a model holds the module that `Encoder.head` calls."""
# Setting of an objective: the towers that train, at least one.
Towers = Annotated[tuple[Literal["image", "text"], ...], Field(min_length=1)]


@settings
class Objective:
    """Settings of a method's training: which towers are trained."""

    trains: Towers = ("image", "text")
    """Towers that train."""


@settings
class NoViewSettings:
    """Settings of views that leave nothing to set."""


@dataclass(frozen=True, slots=True)
class ImageInput:
    """One image of a batch: a file, or two files to be joined along an axis."""

    paths: tuple[str, ...]
    axis: Axis | None = None

    counterfactual: bool = False
    """Whether the path is of a counterfactual's image, below their own folder."""


class ViewContext(NamedTuple):
    """Inputs of a method's view sampler in addition to the captions, such as parses and seed."""

    parses: Mapping[str, Parse]
    """First sentences by sample_id."""

    language: str
    """Name and version of the language pipeline, for provenance."""

    seed: int
    """Seed of every draw, together with the epoch and the sample_id."""

    epoch: int

    counterfactuals: Mapping[str, Sequence[Counterfactual]] = MappingProxyType({})
    """Edited captions by sample_id, for methods that train on them."""

    sentences: Mapping[str, Sequence[Parse]] = MappingProxyType({})
    """Further sentences by sample_id, for methods that ask for them."""

    annotations: Annotations = NO_ANNOTATIONS
    """Published texts, in place of those that the method would make."""

    @classmethod
    def from_parses(
        cls,
        parses: Iterable[Parse],
        language: str,
        seed: int,
        counterfactuals: Mapping[str, Sequence[Counterfactual]],
        annotations: Annotations = NO_ANNOTATIONS,
    ) -> ViewContext:
        """Context to draw views in epoch 0, from parses of captions' first and later sentences."""
        table = Table.of(parses, Parse)
        own = np.asarray(table.column("sentence")) == 0
        further = {} if own.all() else Groups(table)
        return cls(ById(table.where(own)), language, seed, 0, counterfactuals, further, annotations)

    def parse(self, caption: Caption, sentence: int) -> Parse | None:
        """Parse of one sentence of a caption, or None for a later sentence that was not parsed."""
        if sentence == 0:
            return self.parses[caption.sample_id]
        further = self.sentences.get(caption.sample_id, ())
        return next((parse for parse in further if parse.sentence == sentence), None)

    def rng(self, purpose: str, caption: Caption) -> random.Random:
        """Random generator of one caption in this epoch, for a named purpose."""
        return rng(self.seed, purpose, self.epoch, caption.sample_id)


Sampler = Callable[[Caption], View | None]
"""The view of a caption, None where it has none."""


class Example(NamedTuple):
    """One training example: a caption row, and its view in this epoch."""

    caption: Caption
    view: View


class Term(NamedTuple):
    """One loss term: its value and its weight in the training loop's sum."""

    value: Tensor
    weight: float


LossTerms = Mapping[str, Term]


class Collated(NamedTuple):
    """A batch (the method's own NamedTuple of tensors), and counts that are logged."""

    batch: Any
    counts: Mapping[str, int]


class Preprocessor(Protocol):
    """Interface that turns images and texts into tensors, for `Method.collate`."""

    def images(self, images: Sequence[ImageInput]) -> Tensor:
        """Pixels [m, 3, H, W] of images, or their row numbers [m] in precomputed features."""

    def tokens(self, texts: Sequence[str]) -> Tensor:
        """Token ids [K, T] of texts."""

    def spans(
        self, texts: Sequence[str], owners: Sequence[int], spans: Sequence[tuple[int, int]]
    ) -> Tensor:
        """Boolean mask [K, T] of the tokens that spell each given character span.

        Span `spans[k]` is one of `texts[owners[k]]`.
        """


class Encoder(Protocol):
    """Interface of the model's towers, for `Method.loss`.

    A frozen tower's features may be precomputed.
    """

    @property
    def memory(self) -> MutableMapping[str, Tensor]:
        """Tensors that a loss keeps from one training step to the next, by name.

        They have no gradient, and are saved and restored with the weights.
        """

    @property
    def scale(self) -> Tensor:
        """The scalar exp(logit_scale) of the model."""

    @property
    def bias(self) -> Tensor:
        """The scalar logit_bias of the model, for a method whose own `bias` is not None."""

    def images(self, images: Tensor) -> Tensor:
        """Normalised embeddings [m, D] of images that `Preprocessor.images` returned."""

    def texts(self, tokens: Tensor) -> Tensor:
        """Normalised embeddings [K, D] of token ids [K, T]."""

    def dense_images(self, images: Tensor) -> DenseImages:
        """Embeddings and patch tokens of images that `Preprocessor.images` returned."""

    def dense_texts(self, tokens: Tensor) -> DenseTexts:
        """Text embeddings and tokens in the joint space, of token ids [K, T]."""

    def text_tokens(self, tokens: Tensor) -> TextTokens:
        """Text embeddings and tokens in the joint space, for texts with or without <sot> and <eot>.

        Unlike `dense_texts` it gives no mask.
        """

    def head(self, *rows: Tensor) -> Tensor:
        """Results [n, E] of the module `HEAD` that `Method.extend` added, of tensors [n, ...].

        Each process computes its share of the rows, so a row's result depends on that row alone.
        """


def embed_texts(encoder: Encoder, tokens: Tensor) -> Tensor:
    """Normalised embeddings [..., D] of token ids [..., T] of any number of dimensions."""
    return encoder.texts(tokens.flatten(0, -2)).view(*tokens.shape[:-1], -1)


class Method:
    """Base class of fine-tuning methods: samples views, collates batches, computes losses.

    The settings of the views and of the objective are apart, so that a change of a loss weight
    leaves the views as they are.
    """

    name: ClassVar[str]
    """Name in the registry."""

    views_type: ClassVar[type] = NoViewSettings
    """Settings class of the views."""

    objective_type: ClassVar[type]
    """Settings class of the objective, with the field `trains`: the towers that train."""

    negatives_setting: ClassVar[str | None] = None
    """Setting of the views that lists the rules of the hard negatives; None for a method without
    such a list."""

    sentences: ClassVar[int] = 1
    """How many sentences a caption should have; a method that shows more than there are repeats
    them."""

    annotations: tuple[str, ...] = ()
    """Names of the external table's fields (`views.from_table`) that the views can use. They are
    fields of `AnnotationColumns`; a table with anything else is refused before a run."""

    annotated_sentences: ClassVar[int | None] = 1
    """Number of a row's sentences that are looked up in the external table; None for all."""

    def __init__(self, views: Any, objective: Any) -> None:
        self.view_settings, self.objective = views, objective

    @property
    def configuration(self) -> dict[str, Any]:
        """All settings of the method, with their defaults, as plain YAML values."""
        return {"views": plain(self.view_settings), "objective": plain(self.objective)}

    @property
    def trains(self) -> frozenset[Tower]:
        """Names (`image`, `text`) of the model's towers whose weights are trained."""
        return frozenset(self.objective.trains)

    @property
    def trains_scale(self) -> bool:
        """Whether logit_scale and logit_bias are trained along with the towers.

        As the objective's setting `trains_scale` says, if it has one.
        """
        return bool(getattr(self.objective, "trains_scale", True))

    @property
    def needs(self) -> Mapping[Need, str]:
        """Mapping from each need of the method to the setting that avoids it.

        Patches are read by `Encoder.dense_images`, tokens by `text_tokens` and marked tokens by
        `dense_texts`, all in `loss`; `extend` maps the projection of texts, and that map alone
        trains. The settings are for errors: a base that lacks what is read is refused before a run.
        """
        return {}

    @property
    def uses_patches(self) -> bool:
        """Whether precomputed image features must hold patches, because a loss reads them."""
        return "patches" in self.needs

    @property
    def memory_lasts_an_epoch(self) -> bool:
        """Whether `Encoder.memory` is cleared at the start of each epoch."""
        return False

    @property
    def bias(self) -> float | None:
        """Initial logit_bias on a base without one, or None for a method without a bias.

        It is the objective's setting `bias`, for a base trained with a softmax.
        """
        return getattr(self.objective, "bias", None)

    @property
    def files(self) -> Mapping[str, str]:
        """Hashes of files beside data and base that a training's weights depend on, by name."""
        return {}

    def check_base(self, name: str) -> None:
        """Check, before a run, what `extend` needs beside the base model of this name.

        Raises:
            SettingsError: a file is missing, or is not for this base.
        """

    def extend(self, model: nn.Module, name: str) -> Callable[[], None]:
        """Add to a base model what trains with it, by default nothing.

        Modules under `HEAD` train beside the towers, parametrizations of `torch.nn.utils` in their
        place, as adapters do.

        Args:
            model: the base, on its device.
            name: name of the base, for errors.

        Returns:
            A function that leaves the model with the base's parts, before it is exported: it
            removes what was added, or merges it into their weights.
        """
        return lambda: None

    def sampler(self, captions: Sequence[Caption], context: ViewContext) -> Sampler:
        """A function from a caption to its view (the images and texts to train on) in one epoch.

        A caption that cannot have a view (no partner of its orientation) has none; nor has one
        that was not drawn, where a method draws among the captions of an image.

        Args:
            captions: all rows that train, among which partners are drawn.
            context: further inputs that views are drawn from.
        """
        raise NotImplementedError

    def anchors(self, captions: Table[Caption]) -> NDArray[np.bool_]:
        """Boolean mask [n] of the captions that have a view in every epoch, by default all.

        Several sources are mixed by it: a method whose sampler gives some captions no view says
        here which.

        Args:
            captions: all rows that train.
        """
        return np.ones(len(captions), bool)

    def views(self, captions: Sequence[Caption], context: ViewContext) -> Iterator[View]:
        """Iterate over an epoch's views in the captions' order, at most one view a caption."""
        return filter(None, map(self.sampler(captions, context), captions))

    def images(self, example: Example, step: int) -> Sequence[ImageInput]:
        """Images that an example shows in a step, by default its caption's image."""
        return (ImageInput((example.caption.image,)),)

    def collate(
        self, examples: Sequence[Example], step: int, preprocessor: Preprocessor
    ) -> Collated:
        """Batch made of examples for a training step.

        `step` counts from 0 over the whole run.
        """
        raise NotImplementedError

    def objective_name(self, batch: Any) -> str:
        """Extra name under which a batch's loss is logged, empty for a method with one objective.

        Where batches alternate between objectives, a curve of the loss alone would mix them.
        """
        return ""

    def loss(self, encoder: Encoder, batch: Any) -> LossTerms:
        """The weighted loss terms of a batch."""
        raise NotImplementedError
