"""CLIC: composite images, words swapped across their captions, several positives.

Source: "Advancing Compositional Awareness in CLIP with Efficient Fine-Tuning", Sec. 3, App. B.2,
C and D. Configuration alone reaches the paper's ablations: C1-C5 on composites, B1-B4 on single
images (Tables 6, 10, 12, 13).

Shapes: m rows of a batch, L positives a row, T tokens of context, D width of the joint space.
"""

from __future__ import annotations

import random
from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, cast

import numpy as np
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from pydantic import Field, NonNegativeFloat
from torch import Tensor

from compo_pipeline.core.records import Caption, Parse, View
from compo_pipeline.core.seeding import rng
from compo_pipeline.core.settings import settings
from compo_pipeline.core.tables import Table
from compo_pipeline.data.images.composites import Axis, axis_of, orientation
from compo_pipeline.language.editing import Generated
from compo_pipeline.language.swaps import swap_across, swap_within
from compo_pipeline.losses import contrastive, hard_negative, unimodal
from compo_pipeline.methods.clip import Clip, ClipObjective, PairBatch
from compo_pipeline.methods.contract import (
    Collated,
    Encoder,
    Example,
    ImageInput,
    LossTerms,
    Method,
    NoViewSettings,
    Objective,
    Preprocessor,
    Sampler,
    Term,
    Towers,
    ViewContext,
)
from compo_pipeline.methods.views import from_table, provenance, single_image, single_view

POSITIVES = 5  # a view holds so many; a run uses the first k
CANDIDATES = 5
DRAWS = 4 * CANDIDATES  # at most, to find as many that differ
PLAIN = Clip(NoViewSettings(), ClipObjective())  # whose batches and loss the odd steps have


if TYPE_CHECKING:
    Pool = array[int]  # numbers of rows
_pool = partial(array, "i")


@settings
class ClicViews:
    """Settings of CLIC's views: which images are joined, and which words are swapped."""

    images: Literal["composite", "single"] = "composite"
    """Composites of two images, or single images (ablations B1-B4)."""

    partners: Literal["random", "shared_noun"] = "random"
    """Second image of a composite: any other of the same orientation, or one whose caption shares a
    noun (up to five candidates per image)."""

    swap: Literal["across", "within"] = "across"
    """Whether words are swapped `across` the two captions or `within` the first one."""

    occurrence: Literal["drawn", "all"] = "drawn"
    """Occurrence of a repeated word that is swapped: the `drawn` one, or `all` (as in the authors'
    code)."""

    careful: bool = False
    """Whether swaps leave out what makes broken English or keeps the meaning. More rows then have
    no negative."""

    def __post_init__(self) -> None:
        """Single images have one caption to swap within."""
        if self.images == "single" and self.swap == "across":
            raise ValueError("images: single needs swap: within (there is no second caption)")


@settings
class ClicWeights:
    """Weights of CLIC's losses (paper, Eq. 7): contrastive, S-Neg and uni-modal."""

    contrastive: NonNegativeFloat = 0.5
    """Weight of the contrast over all positives."""

    s_neg: NonNegativeFloat = 0.5
    """Weight of the contrast of the first positive with its own negative."""

    unimodal: NonNegativeFloat = 1.0
    """Weight of the distance between two positives."""


@settings
class ClicObjective(Objective):
    """Settings of CLIC's training: positives, weights of the losses, and trained towers."""

    positives: Annotated[int, Field(ge=1, le=POSITIVES)] = 4
    """Number of a view's five positives that are used. The unimodal loss needs two."""

    weights: ClicWeights = ClicWeights()
    """Weights of the losses. 0 leaves one out."""

    unimodal_norm: Literal["squared", "plain"] = "squared"
    """Distance of the unimodal loss: squared (the authors' code) or plain (the paper's Eq. 6)."""

    clip_steps: bool = True
    """Whether odd steps see single images with the plain CLIP loss."""

    trains: Towers = ("text",)
    """Towers that train."""


class Partners:
    """Draws the second image of a composite, of the same orientation as the first.

    It holds numbers of rows and images alone. The same captions in any order give the same
    partners.
    """

    def __init__(
        self,
        captions: Sequence[Caption],
        parses: Mapping[str, Parse],
        kind: Literal["random", "shared_noun"],
        seed: int,
    ) -> None:
        table = Table.of(captions, Caption)
        self.captions = table.take(np.asarray(pc.sort_indices(table.column("sample_id"))))
        self.parses, self.kind, self.seed = parses, kind, seed
        self._images = self.captions.codes("image_id")
        self._of_orientation: defaultdict[str, Pool] = defaultdict(_pool)
        self._of_noun: defaultdict[tuple[str, str], Pool] = defaultdict(_pool)
        turned = _orientations(self.captions)
        for row, of in enumerate(turned):
            self._of_orientation[of].append(row)
        if kind == "shared_noun":
            for row, (caption, of) in enumerate(zip(self.captions, turned, strict=True)):
                for noun in self._nouns(caption):
                    self._of_noun[of, noun].append(row)

    def _nouns(self, caption: Caption) -> list[str]:
        """The nouns of the first sentence of a caption row, in lower case."""
        parse = self.parses[caption.sample_id]
        words = zip(parse.words, parse.upos, strict=True)
        return sorted({word.lower() for word, upos in words if upos == "NOUN"})

    def draw(self, anchor: Caption, random_: random.Random) -> Caption | None:
        """Draw the caption of a composite's second image, or None if no orientation matches.

        With `shared_noun` an anchor keeps up to five candidates, the same in every epoch; an
        anchor that shares no noun with any other image gets a random partner.
        """
        turned = orientation(anchor.width, anchor.height)
        if self.kind == "shared_noun" and (candidates := self._candidates(anchor, turned)):
            return random_.choice(candidates)
        return self._draw_other_image(anchor, self._of_orientation[turned], random_)

    def _candidates(self, anchor: Caption, turned: str) -> list[Caption]:
        """Up to five captions of other images with a noun of the anchor's first sentence."""
        keeps = rng(self.seed, "candidates", anchor.sample_id)
        pools = [self._of_noun[turned, noun] for noun in self._nouns(anchor)]
        found: dict[str, Caption] = {}
        for _ in range(DRAWS if pools else 0):
            other = self._draw_other_image(anchor, keeps.choice(pools), keeps)
            if other is not None:
                found.setdefault(other.image_id, other)
            if len(found) == CANDIDATES:
                break
        return list(found.values())

    def _draw_other_image(
        self, anchor: Caption, pool: Pool, random_: random.Random
    ) -> Caption | None:
        """Draw a caption of another image than the anchor's from a pool, or None if there is none.

        A few draws nearly always find one; else the pool is looked through.
        """
        for _ in range(8):
            row = random_.choice(pool)
            other = self.captions[row]
            if other.image_id != anchor.image_id:
                return other
        rows = np.array(pool)
        others = rows[self._images[rows] != self._images[row]]  # the row shows the anchor's image
        return self.captions[int(random_.choice(others))] if len(others) else None


def _orientations(captions: Table[Caption]) -> list[str]:
    """Orientation of each caption's image, `wide` or `tall`."""
    sizes = (np.asarray(captions.column(side)).tolist() for side in ("width", "height"))
    return [orientation(*size) for size in zip(*sizes, strict=True)]


class ClicBatch(NamedTuple):
    """CLIC batch: m images, each with L positive texts and one negative text."""

    images: Tensor  # [m, 3, H, W], or [m] rows of features
    positives: Tensor  # [L * m, T], all first positives before all second ones
    negatives: Tensor  # [m, T]
    valid: Tensor  # [m] bool: the row has a negative


class Clic(Method):
    """The CLIC method: even steps train with CLIC's losses, odd steps with the CLIP loss."""

    name = "clic"
    views_type = ClicViews
    objective_type = ClicObjective
    view_settings: ClicViews
    objective: ClicObjective
    sentences = 2  # positives after the second are further sentences

    @property
    def annotations(self) -> tuple[str, ...]:  # type: ignore[override]
        """External table's fields that views can use: positives, and negatives if `swap: within`.

        Positives are further sentences. A swap across two captions is no text of one.
        """
        within = self.view_settings.swap == "within"
        return ("positives", "negatives") if within else ("positives",)

    def sampler(self, captions: Sequence[Caption], context: ViewContext) -> Sampler:
        """A function from a caption to its view, or to None if there is no second image for it."""
        if self.view_settings.images == "single":
            return lambda caption: self._single_view(caption, context, context.rng("clic", caption))
        partners = Partners(captions, context.parses, self.view_settings.partners, context.seed)

        def view(caption: Caption) -> View | None:
            random_ = context.rng("clic", caption)
            partner = partners.draw(caption, random_)
            if partner is None:
                return None
            return self._composite_view(caption, partner, context, random_)

        return view

    def anchors(self, captions: Table[Caption]) -> NDArray[np.bool_]:
        """Mask [n] of captions that have a view: composites need two images of one orientation."""
        if self.view_settings.images == "single":
            return super().anchors(captions)
        images, turned = captions.codes("image_id"), np.array(_orientations(captions))
        several = [kind for kind in np.unique(turned) if len(np.unique(images[turned == kind])) > 1]
        return np.isin(turned, several)

    def _composite_view(
        self, anchor: Caption, partner: Caption, context: ViewContext, random_: random.Random
    ) -> View:
        """View of two images: both captions in either order, further sentences, and a negative."""
        shown = [anchor, partner]
        random_.shuffle(shown)
        first, second = anchor.sentences[0], partner.sentences[0]
        further = [_draw_further(caption, random_, context) for caption in (anchor, partner)]
        pairs = [_join_in_random_order(a, b, random_) for a, b in zip(*further, strict=True)]
        if self.view_settings.swap == "across":
            a, b = context.parses[anchor.sample_id], context.parses[partner.sample_id]
            own = self.view_settings
            swap = swap_across(a, b, random_, occurrence=own.occurrence, careful=own.careful)
            negative = None
            if swap:
                text = _join_in_random_order(swap.first, swap.second, random_)
                negative = Generated(text, "swap_across", swap.category, swap.words)
        else:
            negative = self._negative_of_first_sentence(anchor, context, random_)
            if negative:
                text = _join_in_random_order(negative.text, second, random_)
                negative = replace(negative, text=text)
        return View(
            sample_id=anchor.sample_id,
            kind="composite",
            sample_ids=(anchor.sample_id, partner.sample_id),
            images=tuple(caption.image for caption in shown),
            axis=axis_of(anchor.width, anchor.height),
            positives=(join(first, second), join(second, first), *pairs),
            negatives=(negative.text if negative else None,),
            phrases=(),
            phrase_spans=(),
            counterfactuals=(),
            provenance=provenance(context.language, (negative,)),
        )

    def _single_view(self, anchor: Caption, context: ViewContext, random_: random.Random) -> View:
        """View of one image (ablation B3): sentences s1, s1, s2, s3, and a negative of s1."""
        first = anchor.sentences[0]
        negative = self._negative_of_first_sentence(anchor, context, random_)
        positives = (first, first, *_draw_further(anchor, random_, context))
        return single_view(anchor, positives, [negative], context.language)

    def _negative_of_first_sentence(
        self, anchor: Caption, context: ViewContext, random_: random.Random
    ) -> Generated | None:
        """A negative of the first sentence: two words swapped, or a text of an external table."""
        if "negatives" in context.annotations.contents:
            return from_table(context.annotations.negative(anchor.sample_id, random_))
        parse = context.parses[anchor.sample_id]
        return swap_within(parse, random_, careful=self.view_settings.careful)

    def _is_clip_step(self, step: int) -> bool:
        """Whether a step trains with the plain CLIP loss."""
        return self.objective.clip_steps and step % 2 == 1

    def images(self, example: Example, step: int) -> tuple[ImageInput]:
        """Image of an example: the composite at CLIC's steps, the anchor image at CLIP's steps."""
        if self._is_clip_step(step):
            return (single_image(example),)
        return (_composite_image(example),)

    def collate(
        self, examples: Sequence[Example], step: int, preprocessor: Preprocessor
    ) -> Collated:
        """Batch of a step: image-caption pairs at CLIP's odd steps, else composites."""
        if self._is_clip_step(step):
            return PLAIN.collate(examples, step, preprocessor)
        views = [example.view for example in examples]
        positives = preprocessor.tokens(
            [view.positives[k].lower() for k in range(self.objective.positives) for view in views]
        )
        # The empty text in place of a missing negative is masked.
        negatives = preprocessor.tokens([(view.negatives[0] or "").lower() for view in views])
        equal = (positives.view(-1, *negatives.shape) == negatives).all(-1).any(0)
        absent = torch.tensor([view.negatives[0] is None for view in views])
        counts = {
            "rows": len(examples),
            "rows without a negative": int(absent.sum()),
            "negatives equal to a positive": int(equal.sum()),
        }
        images = preprocessor.images([_composite_image(example) for example in examples])
        return Collated(ClicBatch(images, positives, negatives, ~(equal | absent)), counts)

    def objective_name(self, batch: ClicBatch | PairBatch) -> str:
        """Name under which a batch's loss is logged: `clic` or `clip`, empty without CLIP steps."""
        if not self.objective.clip_steps:
            return ""
        return "clip" if isinstance(batch, PairBatch) else self.name

    def loss(self, encoder: Encoder, batch: ClicBatch | PairBatch) -> LossTerms:
        """Weighted losses: CLIC's three (paper, Eq. 4-6), or CLIP's at its own steps."""
        if isinstance(batch, PairBatch):
            return PLAIN.loss(encoder, batch)
        weights, scale = self.objective.weights, encoder.scale
        images = encoder.images(batch.images)
        tokens = [batch.positives, batch.negatives] if weights.s_neg else [batch.positives]
        texts = encoder.texts(torch.cat(tokens))
        texts = texts.view(-1, *images.shape)  # [L, m, D], or [L + 1, m, D] with the negatives
        positives = texts[: self.objective.positives]
        terms = {
            "contrastive": Term(
                contrastive.multi_positive(images, positives, scale), weights.contrastive
            )
        }
        if weights.s_neg:
            value = hard_negative.s_neg(images, positives, texts[-1], batch.valid, scale)
            terms["s_neg"] = Term(value, weights.s_neg)
        if weights.unimodal and len(positives) > 1 and self.view_settings.images == "composite":
            value = unimodal.unimodal(positives[0], positives[1], self.objective.unimodal_norm)
            terms["unimodal"] = Term(value, weights.unimodal)
        return terms


def _composite_image(example: Example) -> ImageInput:
    """Image input of a view: its two images to be joined, or its single image."""
    return ImageInput(example.view.images, cast("Axis | None", example.view.axis))


def _draw_further(caption: Caption, random_: random.Random, context: ViewContext) -> list[str]:
    """Draw three texts for a view's further positives, from the caption's sentences or a table.

    None is repeated as long as they last.
    """
    count = POSITIVES - 2
    others = context.annotations.positives(caption.sample_id)
    further = others or list(caption.sentences[1:]) or list(caption.sentences)
    drawn = random_.sample(further, min(count, len(further)))
    return drawn + random_.choices(further, k=count - len(drawn))


def _with_period(sentence: str) -> str:
    """The sentence with exactly one period at its end."""
    return sentence.rstrip(" .!?,;:") + "."


def join(first: str, second: str) -> str:
    """Two sentences joined by one space, each ending in one period."""
    return f"{_with_period(first)} {_with_period(second)}"


def _join_in_random_order(first: str, second: str, random_: random.Random) -> str:
    """Two sentences joined in random order."""
    return join(first, second) if random_.random() < 0.5 else join(second, first)
