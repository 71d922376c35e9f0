"""CE-CLIP: NegCLIP with ranking losses, image to text and text to text, on four negative kinds.

Source: "Contrasting Intra-Modal and Ranking Cross-Modal Hard Negatives to Enhance Visio-Linguistic
Compositional Understanding" (Zhang et al. 2024), and its authors' code. Their negatives exchange
the first two nouns, or replace an adjective, a noun or a verb by what a masked language model
writes; here rules do. Paper and code differ in the intra-modal loss (`intra_modal_negatives`) and
in how long thresholds last (`reset_thresholds`); `variant=published` is the code as published,
`variant=published_config` the paper.

Shapes: m rows of a batch, K negatives a row, T tokens of context, D width of the joint space.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import NonNegativeFloat

from compo_pipeline.core.settings import settings
from compo_pipeline.losses.adaptive_ranking import (
    adapted_thresholds,
    cross_modal_ranking,
    intra_modal,
    towards_first_negative,
)
from compo_pipeline.losses.negclip import negclip
from compo_pipeline.methods.contract import Encoder, LossTerms, Objective, Term, embed_texts
from compo_pipeline.methods.negclip import NegativesBatch, NegativeViews, Rules, TextNegatives

_THRESHOLDS = "thresholds"


@settings
class CeClipViews(NegativeViews):
    """Settings of CE-CLIP's views: four negatives a caption, one by each rule.

    Each rule is a kind with a threshold of its own.
    """

    generators: Rules = ("negclip", "replace_attribute", "replace_entity", "replace_verb")


@settings
class CeClipWeights:
    """Weights of CE-CLIP's losses: NegCLIP's, the ranking loss and the intra-modal loss.

    0 leaves one of the last two out.
    """

    negclip: NonNegativeFloat = 1.0
    """Weight of the contrast, with the batch's negatives among the texts."""

    ranking: NonNegativeFloat = 0.2
    """Weight of the ranking loss with adaptive thresholds; 0 leaves it out."""

    intra_modal: NonNegativeFloat = 0.2
    """Weight of the contrast of captions with their negatives; 0 leaves it out."""


@settings
class CeClipObjective(Objective):
    """Settings of CE-CLIP's training: weights of the losses, and trained towers."""

    weights: CeClipWeights = CeClipWeights()
    """Weights of the losses."""

    most_threshold: NonNegativeFloat = 10.0
    """Upper bound of the thresholds, in logits."""

    intra_modal_negatives: Literal["batch", "own", "first"] = "batch"
    """Negatives of the intra-modal loss: all negatives of the batch, the caption's own, or all of
    the batch with the first one as every caption's right answer (the authors' published code)."""

    reset_thresholds: bool = False
    """Whether thresholds start at 0 in each epoch (the authors' code) or only once."""


class CeClip(TextNegatives):
    """The CE-CLIP method: NegCLIP, with hard negatives ranked by adaptive thresholds."""

    name = "ce_clip"
    views_type = CeClipViews
    objective_type = CeClipObjective
    objective: CeClipObjective

    @property
    def memory_lasts_an_epoch(self) -> bool:
        """Whether the ranking loss's thresholds are reset at the start of each epoch."""
        return self.objective.reset_thresholds

    def loss(self, encoder: Encoder, batch: NegativesBatch) -> LossTerms:
        """Weighted losses: NegCLIP's, the ranking of negatives, and captions against negatives."""
        weights, scale, valid = self.objective.weights, encoder.scale, batch.valid
        images = encoder.images(batch.images)
        texts = embed_texts(encoder, batch.texts)
        captions, negatives = texts[:, 0], texts[:, 1:]
        contrast = negclip(images, captions, negatives.flatten(0, 1), valid.flatten(), scale)
        terms = {"negclip": Term(contrast, weights.negclip)}
        logits = scale * torch.einsum("md,mkd->mk", images, texts)
        right, wrong = logits[:, 0], logits[:, 1:]
        if weights.ranking:
            thresholds = encoder.memory.get(_THRESHOLDS, torch.zeros_like(wrong[0]))
            ranked = cross_modal_ranking(right, wrong, valid, thresholds)
            terms["ranking"] = Term(ranked, weights.ranking)
            bounded = adapted_thresholds(
                right, wrong, valid, thresholds, self.objective.most_threshold
            )
            encoder.memory[_THRESHOLDS] = bounded
        if weights.intra_modal:
            if self.objective.intra_modal_negatives == "own":
                between = torch.einsum("md,mkd->mk", captions, negatives)
                among = intra_modal(right, scale * between, valid)
            else:
                first = self.objective.intra_modal_negatives == "first"
                between = captions @ negatives.flatten(0, 1).T
                contrast_texts = towards_first_negative if first else intra_modal
                among = contrast_texts(right, scale * between, valid.flatten())
            terms["intra_modal"] = Term(among, weights.intra_modal)
        return terms
