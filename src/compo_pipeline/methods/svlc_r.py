"""SVLC-R: negatives by look-up tables, and paraphrases as further positives.

Source: "Teaching Structured Vision & Language Concepts to Vision & Language Models" (Doveh et al.
2023), and its authors' code: the negatives are texts of the contrast and of S-Neg; the paraphrase
is contrasted with the images and with the captions. Their published run with rule-made negatives
has no paraphrases (`weights.positive: 0`). Their five tables have colours, sizes, materials, states
and actions, never things; here they are the lexicon's groups of attributes and verbs. Rules write
the paraphrases, theirs a language model; a caption without one is its own, as theirs.

Shapes: m rows of a batch, K negatives a row, T tokens of context.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from compo_pipeline.core.records import Caption
from compo_pipeline.core.settings import settings
from compo_pipeline.language.paraphrases import paraphrase
from compo_pipeline.losses.contrastive import paraphrase_contrast
from compo_pipeline.methods.contract import (
    Collated,
    Encoder,
    Example,
    LossTerms,
    Preprocessor,
    Term,
    ViewContext,
    embed_texts,
)
from compo_pipeline.methods.negclip import NegativeViews, Rules, TextNegatives
from compo_pipeline.methods.sneg import SnegObjective, SnegWeights, contrastive_terms


@settings
class SvlcRViews(NegativeViews):
    """Settings of SVLC-R's views: one replaced word in each caption."""

    generators: Rules = ("replace_attribute_or_verb",)


@settings
class SvlcRWeights(SnegWeights):
    """Weights of SVLC-R's losses: CLIP's, S-Neg, and the contrast with paraphrases.

    0 leaves one of the last two out.
    """

    positive: NonNegativeFloat = 1.0
    """Weight of the loss of paraphrases; 0 leaves it out."""


@settings
class SvlcRObjective(SnegObjective):
    """Settings of SVLC-R's training: weights of the losses, and trained towers."""

    weights: SvlcRWeights = SvlcRWeights()
    """Weights of the losses."""


class ParaphrasedBatch(NamedTuple):
    """SVLC-R batch: m images, each with its caption, up to K negatives and a paraphrase."""

    images: Tensor  # [m, 3, H, W], or [m] rows of features
    texts: Tensor  # [m, K + 2, T]: the caption, its negatives, its paraphrase
    valid: Tensor  # [m, K] bool: the negative exists


class SvlcR(TextNegatives):
    """The SVLC-R method: S-Neg with replaced words, and paraphrases as further positives."""

    name = "svlc_r"
    views_type = SvlcRViews
    objective_type = SvlcRObjective
    objective: SvlcRObjective
    annotations = ("negatives", "positives")
    """Fields of an external table that views can use: negatives, positives as paraphrases."""

    def positives(self, caption: Caption, context: ViewContext) -> Sequence[str]:
        """A caption's first sentence, and a paraphrase by table or rule, or the sentence again."""
        own, rng = caption.sentences[0], context.rng("paraphrase", caption)
        if "positives" in context.annotations.contents:
            others = context.annotations.positives(caption.sample_id)
            return (own, rng.choice(others) if others else own)
        other = paraphrase(context.parses[caption.sample_id], rng)
        return (own, other.text if other else own)

    def collate(
        self, examples: Sequence[Example], step: int, preprocessor: Preprocessor
    ) -> Collated:
        """Batch of images, captions, hard negatives and paraphrases."""
        (images, texts, valid), counts = super().collate(examples, step, preprocessor)
        tokens = preprocessor.tokens([example.view.positives[1].lower() for example in examples])
        own = (tokens == texts[:, 0]).all(-1)
        batch = ParaphrasedBatch(images, torch.cat([texts, tokens[:, None]], dim=1), valid)
        return Collated(batch, {**counts, "rows without a paraphrase": int(own.sum())})

    def loss(self, encoder: Encoder, batch: ParaphrasedBatch) -> LossTerms:
        """Weighted losses: CLIP's, S-Neg, and images and captions against paraphrases."""
        images = encoder.images(batch.images)
        texts = embed_texts(encoder, batch.texts)
        texts, paraphrases = texts[:, :-1], texts[:, -1]
        terms = contrastive_terms(
            self.objective, images, texts, batch.valid, encoder.scale, negatives_in_contrast=True
        )
        if weight := self.objective.weights.positive:
            own = paraphrase_contrast(images, texts[:, 0], paraphrases, encoder.scale)
            terms["positive"] = Term(own, weight)
        return terms
