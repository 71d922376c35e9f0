"""Plain CLIP fine-tuning: the control of methods that train by a softmax over the batch.

It sees the anchor's image and a sentence of its own, of the same rows, whatever their view holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from torch import Tensor

from compo_pipeline.losses import contrastive
from compo_pipeline.methods.contract import (
    Collated,
    Drawing,
    Encoder,
    Example,
    ImageInput,
    LossTerms,
    Reader,
    Term,
    Tower,
    require_tower,
)
from compo_pipeline.methods.provenance import provenance
from compo_pipeline.methods.singles import own_sentence, single_image, single_view
from compo_pipeline.records import Caption, View


@dataclass(frozen=True)
class ClipViews:
    """Nothing to choose: the view is the caption."""


@dataclass(frozen=True)
class ClipObjective:
    """What is trained.

    Attributes:
        trains: towers that are trained; a control trains those of the method it stands beside.
        trains_scale: whether logit_scale and logit_bias are; likewise.
    """

    trains: tuple[Literal["image", "text"], ...] = ("text",)
    trains_scale: bool = True

    def __post_init__(self) -> None:
        """Something must be left to train."""
        require_tower(self.trains)


class PairBatch(NamedTuple):
    """m images, each with its caption."""

    images: Tensor  # [m, 3, H, W], or [m] rows of features
    texts: Tensor  # [m, T]


def pair_batch(examples: Sequence[Example], reader: Reader) -> PairBatch:
    """Each anchor's image with a sentence of its own, lower-cased."""
    return PairBatch(
        reader.images([single_image(example) for example in examples]),
        reader.tokens([own_sentence(example).lower() for example in examples]),
    )


def pair_loss(encoder: Encoder, batch: PairBatch) -> LossTerms:
    """The CLIP loss as the only term."""
    images, texts = encoder.images(batch.images), encoder.texts(batch.texts)
    return {"clip": Term(contrastive.clip(images, texts, encoder.scale), 1.0)}


class Clip:
    """CLIP fine-tuning on single images."""

    name: ClassVar[str] = "clip"
    views_type: ClassVar[type] = ClipViews
    objective_type: ClassVar[type] = ClipObjective
    sentences: ClassVar[int] = 1
    parsed_sentences: ClassVar[int] = 0  # plain captions need no parse
    reads_patches: ClassVar[bool] = False

    def __init__(self, views: ClipViews, objective: ClipObjective) -> None:
        self.objective = objective

    @property
    def trains(self) -> frozenset[Tower]:
        """As configured."""
        return frozenset(self.objective.trains)

    @property
    def trains_scale(self) -> bool:
        """As configured."""
        return self.objective.trains_scale

    @property
    def bias(self) -> float | None:
        """A softmax leaves any bias undetermined."""
        return None

    def views(self, captions: Sequence[Caption], drawing: Drawing) -> Iterator[View]:
        """The caption itself."""
        for caption in captions:
            yield single_view(caption, caption.sentences[:1], (), provenance("", ()))

    def needed(self, example: Example, step: int) -> tuple[ImageInput]:
        """Always the anchor's image."""
        return (single_image(example),)

    def collate(self, examples: Sequence[Example], step: int, reader: Reader) -> Collated:
        """A pair batch at every step."""
        return Collated(pair_batch(examples, reader), {"rows": len(examples)})

    def loss(self, encoder: Encoder, batch: PairBatch) -> LossTerms:
        """The CLIP loss."""
        return pair_loss(encoder, batch)
