"""FSC-CLIP: a local hard-negative loss, and both hard-negative losses focal and smoothed.

Source: "Preserving Multi-Modal Capabilities of Pre-trained VLMs for Improving Vision-Linguistic
Compositionality", Sec. 3 and App. A.1. Configuration alone reaches the paper's ablations: a weight
of 0 leaves a loss out, gamma 0 the focal weight, beta 0 the smoothing.

Shapes: m rows of a batch, K negatives a row, T tokens of context, P patches, D width of the joint
space.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from compo_pipeline.core.settings import Share, settings
from compo_pipeline.losses import contrastive
from compo_pipeline.losses.calibrated import calibrated_loss
from compo_pipeline.losses.local_alignment import AttentionNorm, local_scores
from compo_pipeline.methods.contract import Encoder, LossTerms, Need, Objective, Term
from compo_pipeline.methods.negclip import NegativesBatch, NegativeViews, Rules, TextNegatives


@settings
class FscClipViews(NegativeViews):
    """Settings of FSC-CLIP's views: three negatives a caption, one by each rule."""

    generators: Rules = ("negclip", "replace", "bigram")


@settings
class FscClipWeights:
    """Weights of FSC-CLIP's losses (Eq. 11): CLIP's, and global and local hard-negative loss.

    0 leaves one out.
    """

    contrastive: NonNegativeFloat = 1.0
    """Weight of the contrast of images with captions."""

    global_hn: NonNegativeFloat = 0.5
    """Weight of the global hard-negative loss; 0 leaves it out."""

    local_hn: NonNegativeFloat = 0.2
    """Weight of the local hard-negative loss, of tokens with patches; 0 leaves it out."""


@settings
class FscClipObjective(Objective):
    """Settings of FSC-CLIP's training: weights of the losses, and trained towers."""

    weights: FscClipWeights = FscClipWeights()
    """Weights of the losses."""

    gamma: NonNegativeFloat = 2.0
    """Exponent of the focal weight (Eq. 9). 0 weights all rows equally."""

    beta: Share = 0.02
    """Strength of the label smoothing (Eq. 10). 0 does not smooth."""

    attention: AttentionNorm = "minmax"
    """Function that turns a token's similarities to the patches into weights (Eq. 6, App. B.1)."""


class FscClip(TextNegatives):
    """The FSC-CLIP method: CLIP with a global and a local hard-negative loss."""

    name = "fsc_clip"
    views_type = FscClipViews
    objective_type = FscClipObjective
    objective: FscClipObjective

    @property
    def needs(self) -> Mapping[Need, str]:
        """Mapping from each dense feature that `loss` needs to the setting that avoids the need."""
        if not self.objective.weights.local_hn:
            return {}
        otherwise = "set fsc_clip.objective.weights.local_hn to 0"
        return {"patches": otherwise, "marked_tokens": otherwise}

    def loss(self, encoder: Encoder, batch: NegativesBatch) -> LossTerms:
        """Weighted losses: CLIP's, and the global and local hard-negative losses (Eq. 11)."""
        weights, scale = self.objective.weights, encoder.scale
        grid, flat = batch.texts.shape[:2], batch.texts.flatten(0, 1)
        terms = {}
        if self.uses_patches:
            images, patches = encoder.dense_images(batch.images)
            texts, tokens, mask = encoder.dense_texts(flat)
            local = local_scores(
                patches,
                tokens.view(*grid, *tokens.shape[1:]),
                mask.view(*grid, -1),
                scale,
                self.objective.attention,
            )
            terms["local_hn"] = Term(self._calibrated_loss(local, batch.valid), weights.local_hn)
        else:
            images, texts = encoder.images(batch.images), encoder.texts(flat)
        texts = texts.view(*grid, -1)
        own = contrastive.clip(images, texts[:, 0], scale)
        terms["contrastive"] = Term(own, weights.contrastive)
        if weights.global_hn:
            logits = scale * torch.einsum("md,mkd->mk", images, texts)
            terms["global_hn"] = Term(self._calibrated_loss(logits, batch.valid), weights.global_hn)
        return {**terms, **self.further_terms(encoder, batch, texts[:, 0])}

    def _calibrated_loss(self, logits: Tensor, valid: Tensor) -> Tensor:
        """Calibrated loss of each row's text against its negatives, from logits [m, K + 1]."""
        return calibrated_loss(logits, valid, self.objective.gamma, self.objective.beta)
