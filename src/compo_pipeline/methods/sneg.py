"""S-Neg: CLIP's loss, and a loss between each caption and its own hard negatives only.

Source: CLIC paper, Eq. 3, for the loss that SVLC and DAC add to CLIP's; with several negatives it
is a softmax over all of them (the authors' code of both). Whether the negatives are further texts
of CLIP's contrast too, as NegCLIP has them, is configurable: in Eq. 1 they are not, in the authors'
code they are.

Shapes: m rows of a batch, K negatives a row, T tokens of context, D width of the joint space.
"""

from __future__ import annotations

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from compo_pipeline.core.settings import settings
from compo_pipeline.losses import contrastive
from compo_pipeline.losses.calibrated import calibrated_loss
from compo_pipeline.losses.negclip import negclip
from compo_pipeline.methods.contract import Encoder, LossTerms, Objective, Term, embed_texts
from compo_pipeline.methods.negclip import NegativesBatch, NegativeViews, Rules, TextNegatives


@settings
class SnegViews(NegativeViews):
    """Settings of S-Neg's views: one swap in each caption."""

    generators: Rules = ("swap",)


@settings
class SnegWeights:
    """Weights of S-Neg's losses: CLIP's, and captions against their own negatives.

    0 leaves the second one out.
    """

    contrastive: NonNegativeFloat = 1.0
    """Weight of the contrast of images with captions."""

    s_neg: NonNegativeFloat = 1.0
    """Weight of the contrast of each caption with its own negative; 0 leaves it out."""


@settings
class SnegObjective(Objective):
    """Settings of S-Neg's training: weights of the losses, and trained towers."""

    weights: SnegWeights = SnegWeights()
    """Weights of the losses."""


class Sneg(TextNegatives):
    """The S-Neg method: CLIP's loss, and each caption against its own negatives."""

    name = "sneg"
    views_type = SnegViews
    objective_type = SnegObjective
    objective: SnegObjective

    def loss(self, encoder: Encoder, batch: NegativesBatch) -> LossTerms:
        """Weighted losses: CLIP's contrastive loss and S-Neg."""
        images = encoder.images(batch.images)
        texts = embed_texts(encoder, batch.texts)
        return contrastive_terms(self.objective, images, texts, batch.valid, encoder.scale)


def contrastive_terms(
    objective: SnegObjective,
    images: Tensor,
    texts: Tensor,
    valid: Tensor,
    scale: Tensor,
    *,
    negatives_in_contrast: bool = False,
) -> dict[str, Term]:
    """Loss terms of given embeddings: CLIP's contrastive loss and S-Neg.

    Args:
        objective: settings with the weights of the losses.
        images: [m, D], normalised.
        texts: [m, K + 1, D], normalised, the caption first.
        valid: [m, K], bool: the negative exists.
        scale: scalar, exp(logit_scale).
        negatives_in_contrast: whether the contrast of images with captions has the negatives of the
            whole batch too, as NegCLIP's.
    """
    captions, negatives = texts[:, 0], texts[:, 1:].flatten(0, 1)
    if negatives_in_contrast:
        contrast = negclip(images, captions, negatives, valid.flatten(), scale)
    else:
        contrast = contrastive.clip(images, captions, scale)
    terms = {"contrastive": Term(contrast, objective.weights.contrastive)}
    if objective.weights.s_neg:
        logits = scale * torch.einsum("md,mkd->mk", images, texts)
        terms["s_neg"] = Term(calibrated_loss(logits, valid), objective.weights.s_neg)
    return terms
