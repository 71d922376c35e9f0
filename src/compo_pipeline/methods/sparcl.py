"""SPARCL: a real, a negative and a positive pair a sample, and adaptive margins between them.

Source: "Enhancing Vision-Language Compositional Understanding with Multimodal Synthetic Data".
Configuration alone reaches the paper's ablations: `images: false` leaves the real image against
the three texts, `margins.adaptive: false` takes one margin for all; those of the images
(injection, AdaIN) are settings of the image generator.
"""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar

from pydantic import NonNegativeFloat

from compo_pipeline.configuration.settings import settings
from compo_pipeline.losses import margin, sextuple
from compo_pipeline.losses.margin import Margins
from compo_pipeline.methods.clip import SOFTMAX_TRAINED
from compo_pipeline.methods.contract import Encoder, LossTerms, Term, Towers
from compo_pipeline.methods.counterfactual_pairs import CounterfactualPairs, PairsBatch, embed_pairs


@settings
class SparclWeights:
    """Weights of SPARCL's contrastive loss and its margin loss (the paper's lambda).

    0 leaves the margin loss out.
    """

    contrastive: NonNegativeFloat = 1.0
    """Weight of the contrast of real images with captions."""

    margin: NonNegativeFloat = 0.01
    """Weight of the margin loss, the paper's lambda; 0 leaves it out."""


@settings
class SparclObjective:
    """Settings of SPARCL's training: weights of the losses, and trained towers."""

    weights: SparclWeights = field(default_factory=SparclWeights)
    """Of the losses."""

    margins: Margins = field(default_factory=Margins)
    """m0, beta, gamma and alpha of the margin loss, in logits: their values belong to a scale of
    100.
    """

    images: bool = True
    """Whether synthetic images take part, or the synthetic texts alone."""

    bias: float = SOFTMAX_TRAINED
    """logit_bias on a base that was trained with a softmax and has none."""

    trains: Towers = ("image", "text")
    """Towers that are trained."""


class Sparcl(CounterfactualPairs):
    """The SPARCL method: contrastive and margin loss on real and synthetic pairs."""

    name: ClassVar[str] = "sparcl"
    objective_type: ClassVar[type] = SparclObjective
    objective: SparclObjective

    @property
    def trains_scale(self) -> bool:
        """Always False: logit_scale and logit_bias are not trained."""
        return False

    def loss(self, encoder: Encoder, batch: PairsBatch) -> LossTerms:
        """Weighted losses: the contrastive and the margin loss (L_con + lambda L_mar)."""
        weights, there = self.objective.weights, (batch.images_there, batch.texts_there)
        logits = sextuple.similarities(*embed_pairs(encoder, batch), encoder.scale)
        own = sextuple.contrast(logits, encoder.bias, *there)
        terms = {"contrastive": Term(own, weights.contrastive)}
        if weights.margin:
            ranked = margin.ranking(logits, *there, self.objective.margins)
            terms["margin"] = Term(ranked, weights.margin)
        return terms
