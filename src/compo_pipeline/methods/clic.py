"""CLIC: composite images, words swapped across their captions, several positives.

Source: "Advancing Compositional Awareness in CLIP with Efficient Fine-Tuning", Sec. 3, App. B.2,
C and D. Configuration alone reaches the paper's ablations: C1-C5 on composites, B1-B4 on single
images (Tables 6, 10, 12, 13).

Shapes: m rows of a batch, L positives a row, T tokens of context, D width of the joint space.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple, cast

import torch
from torch import Tensor

from compo_pipeline.images.composites import Axis, axis_of
from compo_pipeline.language.swaps import swap_across, swap_within
from compo_pipeline.losses import contrastive, hard_negative, unimodal
from compo_pipeline.methods.clip import PairBatch, pair_batch, pair_loss
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
from compo_pipeline.methods.partners import Partners
from compo_pipeline.methods.provenance import Origin, provenance
from compo_pipeline.methods.singles import single_image, single_view
from compo_pipeline.records import Caption, View

POSITIVES = 5  # a view holds so many; a run uses the first k


@dataclass(frozen=True)
class ClicViews:
    """What a view shows and says.

    Attributes:
        images: composites of two images, or single images (ablations B1-B4).
        partners: any other image of the same orientation, or one whose caption shares a noun
            (up to five candidates an image).
        swap: words are swapped `across` the two captions, or `within` the first alone.
        occurrence: of a word that stands more than once, the drawn occurrence is swapped, or all
            (as the authors' code does).
        careful: swaps leave out what makes broken English, or says the same; more rows stay
            without a negative.
    """

    images: Literal["composite", "single"] = "composite"
    partners: Literal["random", "shared_noun"] = "random"
    swap: Literal["across", "within"] = "across"
    occurrence: Literal["drawn", "all"] = "drawn"
    careful: bool = False

    def __post_init__(self) -> None:
        """Single images have one caption to swap within."""
        if self.images == "single" and self.swap == "across":
            raise ValueError("images: single needs swap: within (there is no second caption)")


@dataclass(frozen=True)
class ClicWeights:
    """Weights of the three losses (paper, Eq. 7)."""

    contrastive: float = 0.5
    s_neg: float = 0.5
    unimodal: float = 1.0


@dataclass(frozen=True)
class ClicObjective:
    """What is trained, and on what.

    Attributes:
        positives: how many of a view's five positives count; the unimodal loss needs two.
        weights: of the losses; 0 leaves one out.
        unimodal_norm: squared distance (the authors' code) or plain (the paper's Eq. 6).
        clip_steps: odd steps see single images with the plain CLIP loss.
        trains: towers that are trained.
    """

    positives: int = 4
    weights: ClicWeights = field(default_factory=ClicWeights)
    unimodal_norm: Literal["squared", "plain"] = "squared"
    clip_steps: bool = True
    trains: tuple[Literal["image", "text"], ...] = ("text",)

    def __post_init__(self) -> None:
        """Bounds that a type cannot say."""
        if not 1 <= self.positives <= POSITIVES:
            raise ValueError(f"positives: expected 1 to {POSITIVES}, got {self.positives}")
        require_tower(self.trains)


class ClicBatch(NamedTuple):
    """m rows with L positives each."""

    images: Tensor  # [m, 3, H, W], or [m] rows of features
    positives: Tensor  # [L * m, T], all first positives before all second ones
    negatives: Tensor  # [m, T]
    valid: Tensor  # [m] bool: the row has a negative


class Clic:
    """CLIC; even steps use its losses, odd ones the plain CLIP loss."""

    name: ClassVar[str] = "clic"
    views_type: ClassVar[type] = ClicViews
    objective_type: ClassVar[type] = ClicObjective
    sentences: ClassVar[int] = 2  # positives after the second say further ones
    parsed_sentences: ClassVar[int] = 1  # words are swapped in first sentences only
    reads_patches: ClassVar[bool] = False
    trains_scale: ClassVar[bool] = True
    bias: ClassVar[float | None] = None

    def __init__(self, views: ClicViews, objective: ClicObjective) -> None:
        self.settings, self.objective = views, objective

    @property
    def trains(self) -> frozenset[Tower]:
        """As configured; the text tower in the paper."""
        return frozenset(self.objective.trains)

    def views(self, captions: Sequence[Caption], drawing: Drawing) -> Iterator[View]:
        """One view a caption and epoch; without a possible partner there is none."""
        single = self.settings.images == "single"
        partners = (
            None
            if single
            else Partners(captions, drawing.parses, self.settings.partners, drawing.seed)
        )
        for caption in captions:
            random_ = drawing.rng("clic", caption)
            if partners is None:
                yield self._single(caption, drawing, random_)
                continue
            partner = partners.draw(caption, random_)
            if partner is not None:
                yield self._composite(caption, partner, drawing, random_)

    def _composite(
        self, anchor: Caption, partner: Caption, drawing: Drawing, random_: random.Random
    ) -> View:
        """Two images, their captions in both orders, further sentences, one false pair."""
        shown = [anchor, partner]
        random_.shuffle(shown)
        first, second = anchor.sentences[0], partner.sentences[0]
        further = [_further(caption, POSITIVES - 2, random_) for caption in (anchor, partner)]
        pairs = [_either_order(a, b, random_) for a, b in zip(*further, strict=True)]
        a, b = drawing.parses[anchor.sample_id], drawing.parses[partner.sample_id]
        if self.settings.swap == "across":
            swap = swap_across(
                a, b, random_, occurrence=self.settings.occurrence, careful=self.settings.careful
            )
            negative = _either_order(swap.first, swap.second, random_) if swap else None
            origin = Origin("swap_across", swap.category, swap.words) if swap else None
        else:
            made = swap_within(a, random_, careful=self.settings.careful)
            negative = _either_order(made.text, second, random_) if made else None
            origin = Origin.of(made) if made else None
        return View(
            sample_id=anchor.sample_id,
            kind="composite",
            sample_ids=(anchor.sample_id, partner.sample_id),
            images=tuple(caption.image for caption in shown),
            axis=axis_of(anchor.width, anchor.height),
            positives=(join(first, second), join(second, first), *pairs),
            negatives=(negative,),
            phrases=(),
            phrase_spans=(),
            counterfactuals=(),
            provenance=provenance(drawing.language, (origin,)),
        )

    def _single(self, anchor: Caption, drawing: Drawing, random_: random.Random) -> View:
        """One image with the positives s1, s1, s2, s3 (ablation B3), a swap within s1."""
        parse = drawing.parses[anchor.sample_id]
        made = swap_within(parse, random_, careful=self.settings.careful)
        first = anchor.sentences[0]
        positives = (first, first, *_further(anchor, POSITIVES - 2, random_))
        told = provenance(drawing.language, (Origin.of(made) if made else None,))
        return single_view(anchor, positives, (made.text if made else None,), told)

    def _plain(self, step: int) -> bool:
        """Whether a step is one of plain CLIP."""
        return self.objective.clip_steps and step % 2 == 1

    def needed(self, example: Example, step: int) -> tuple[ImageInput]:
        """The composite at CLIC's steps, the anchor alone at CLIP's."""
        if self._plain(step):
            return (single_image(example),)
        return (_composite_image(example),)

    def collate(self, examples: Sequence[Example], step: int, reader: Reader) -> Collated:
        """A pair batch at odd steps, a CLIC batch at even ones."""
        if self._plain(step):
            return Collated(pair_batch(examples, reader), {"rows": len(examples)})
        views = [example.view for example in examples]
        positives = reader.tokens(
            [view.positives[k].lower() for k in range(self.objective.positives) for view in views]
        )
        # The empty text that stands in for a missing negative is never looked at: it is masked.
        negatives = reader.tokens([(view.negatives[0] or "").lower() for view in views])
        equal = (positives.view(-1, *negatives.shape) == negatives).all(-1).any(0)
        absent = torch.tensor([view.negatives[0] is None for view in views])
        counts = {
            "rows": len(examples),
            "rows without a negative": int(absent.sum()),
            "negatives equal to a positive": int(equal.sum()),
        }
        images = reader.images([_composite_image(example) for example in examples])
        return Collated(ClicBatch(images, positives, negatives, ~(equal | absent)), counts)

    def loss(self, encoder: Encoder, batch: ClicBatch | PairBatch) -> LossTerms:
        """The three losses (paper, Eq. 4-6) on composites, or plain CLIP."""
        if isinstance(batch, PairBatch):
            return pair_loss(encoder, batch)
        weights, scale = self.objective.weights, encoder.scale
        images = encoder.images(batch.images)
        tokens = [batch.positives, batch.negatives] if weights.s_neg else [batch.positives]
        texts = encoder.texts(torch.cat(tokens))
        texts = texts.view(-1, *images.shape)  # [L, m, D], or [L + 1, m, D] with the negatives
        positives = texts[: self.objective.positives]
        terms = {
            "contrastive": Term(
                contrastive.multi_positive(images, positives, scale), weights.contrastive
            ),
        }
        if weights.s_neg:
            value = hard_negative.s_neg(images, positives, texts[-1], batch.valid, scale)
            terms["s_neg"] = Term(value, weights.s_neg)
        if weights.unimodal and len(positives) > 1 and self.settings.images == "composite":
            value = unimodal.unimodal(positives[0], positives[1], self.objective.unimodal_norm)
            terms["unimodal"] = Term(value, weights.unimodal)
        return terms


def _composite_image(example: Example) -> ImageInput:
    """What CLIC's own steps show: of ablations on single images, the anchor's."""
    return ImageInput(example.view.images, cast("Axis | None", example.view.axis))


def _further(caption: Caption, count: int, random_: random.Random) -> list[str]:
    """Further sentences of a caption, without repetition as long as they last."""
    further = list(caption.sentences[1:]) or list(caption.sentences)
    drawn = random_.sample(further, min(count, len(further)))
    return drawn + random_.choices(further, k=count - len(drawn))


def _end(sentence: str) -> str:
    """The sentence with one period at its end."""
    return sentence.rstrip(" .!?,;:") + "."


def join(first: str, second: str) -> str:
    """Two sentences, each with one period, joined by one space."""
    return f"{_end(first)} {_end(second)}"


def _either_order(first: str, second: str, random_: random.Random) -> str:
    """Two sentences joined in random order."""
    return join(first, second) if random_.random() < 0.5 else join(second, first)
