"""SPARCL: a real, a negative and a positive pair a sample, and adaptive margins between them.

Source: "Enhancing Vision-Language Compositional Understanding with Multimodal Synthetic Data".
Configuration alone reaches the paper's ablations: `images: false` leaves the real image against
the three texts, `margins.adaptive: false` takes one margin for all; those of the images
(injection, AdaIN) are settings of the image generator. Beyond the paper, the contrast may be a
softmax, and a sample's own pairs may be ranked: that teaches relations in minutes
(docs/explanation/findings.md).
"""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeFloat, PositiveFloat

from compo_pipeline.core.settings import settings
from compo_pipeline.losses import margin, sextuple
from compo_pipeline.losses.margin import Margins
from compo_pipeline.methods.clip import SOFTMAX_TRAINED
from compo_pipeline.methods.contract import Encoder, LossTerms, Objective, Term
from compo_pipeline.methods.counterfactual_pairs import CounterfactualPairs, PairsBatch, embed_pairs


@settings
class SparclWeights:
    """Weights of SPARCL's contrastive loss and of the rankings of pairs.

    0 leaves a loss out.
    """

    contrastive: NonNegativeFloat = 1.0
    """Weight of the contrast of real images with captions."""

    margin: NonNegativeFloat = 0.01
    """Weight of the margin loss, the paper's lambda."""

    pairs: NonNegativeFloat = 0.0
    """Weight of the ranking of each sample's own pairs (`losses.sextuple.pair_ranking`), which the
    paper does not have."""


@settings
class SparclObjective(Objective):
    """Settings of SPARCL's training: weights of the losses, and trained towers."""

    weights: SparclWeights = SparclWeights()
    """Weights of the losses."""

    margins: Margins = Margins()
    """m0, beta, gamma and alpha of the margin loss, in logits. The defaults belong to a scale of
    100."""

    images: bool = True
    """Whether synthetic images take part, or only the synthetic texts."""

    contrast: Literal["sigmoid", "softmax"] = "sigmoid"
    """Contrastive loss: SigLIP's, as in the paper, or InfoNCE, with which CLIP bases were trained
    and which keeps more of their retrieval."""

    scale: PositiveFloat | None = None
    """Scale of the logits in all losses, in place of the model's exp(logit_scale), which keeps its
    value. Null takes the model's."""

    bias: float = SOFTMAX_TRAINED
    """Initial logit_bias of the sigmoid contrast, for a base that was trained with a softmax and
    has none."""


class Sparcl(CounterfactualPairs):
    """The SPARCL method: contrastive and margin loss on real and synthetic pairs."""

    name = "sparcl"
    objective_type = SparclObjective
    objective: SparclObjective

    @property
    def trains_scale(self) -> bool:
        """Always False: logit_scale and logit_bias are not trained."""
        return False

    @property
    def bias(self) -> float | None:
        """Initial logit_bias of the sigmoid contrast, or None with the softmax."""
        return self.objective.bias if self.objective.contrast == "sigmoid" else None

    def loss(self, encoder: Encoder, batch: PairsBatch) -> LossTerms:
        """Weighted losses: L_con + lambda L_mar, and the ranking of pairs."""
        weights, there = self.objective.weights, (batch.images_there, batch.texts_there)
        scale = self.objective.scale or encoder.scale
        logits = sextuple.similarities(*embed_pairs(encoder, batch), scale)
        if self.objective.contrast == "sigmoid":
            own = sextuple.contrast(logits, encoder.bias, *there)
        else:
            own = sextuple.softmax_contrast(logits, *there)
        terms = {"contrastive": Term(own, weights.contrastive)}
        if weights.margin:
            ranked = margin.ranking(logits, *there, self.objective.margins)
            terms["margin"] = Term(ranked, weights.margin)
        if weights.pairs:
            terms["pairs"] = Term(sextuple.pair_ranking(logits, *there), weights.pairs)
        return terms
