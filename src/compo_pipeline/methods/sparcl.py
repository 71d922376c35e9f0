"""SPARCL: a real, a negative and a positive pair a sample, and adaptive margins between them.

Source: "Enhancing Vision-Language Compositional Understanding with Multimodal Synthetic Data".
Configuration alone reaches the paper's ablations: `images: false` leaves the real image against
the three texts, `margins.adaptive: false` takes one margin for all; those of the images
(injection, AdaIN) are settings of the image generator.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from compo_pipeline.losses import margin, sextuple
from compo_pipeline.losses.margin import Margins
from compo_pipeline.methods.contract import Encoder, LossTerms, Term, require_tower
from compo_pipeline.methods.counterfactual_pairs import CounterfactualPairs, PairsBatch, embedded
from compo_pipeline.methods.siglip import SOFTMAX_TRAINED


@dataclass(frozen=True)
class SparclWeights:
    """Weights of the two losses; the paper's lambda is `margin`, 0 leaves that loss out."""

    contrastive: float = 1.0
    margin: float = 0.01

    def __post_init__(self) -> None:
        """A loss is not trained against."""
        for name, weight in (("contrastive", self.contrastive), ("margin", self.margin)):
            if not weight >= 0:
                raise ValueError(f"{name}: expected at least 0, got {weight}")


@dataclass(frozen=True)
class SparclObjective:
    """What is trained, and on what.

    Attributes:
        weights: of the losses.
        margins: m0, beta, gamma and alpha of the margin loss, in logits: their values belong to a
            scale of 100.
        images: whether synthetic images take part, or the synthetic texts alone.
        bias: logit_bias on a base that was trained with a softmax and has none.
        trains: towers that are trained.
    """

    weights: SparclWeights = field(default_factory=SparclWeights)
    margins: Margins = field(default_factory=Margins)
    images: bool = True
    bias: float = SOFTMAX_TRAINED
    trains: tuple[Literal["image", "text"], ...] = ("image", "text")

    def __post_init__(self) -> None:
        """Something must be left to train."""
        require_tower(self.trains)


class Sparcl(CounterfactualPairs):
    """SPARCL; scale and bias stay as they are."""

    name: ClassVar[str] = "sparcl"
    objective_type: ClassVar[type] = SparclObjective
    trains_scale: ClassVar[bool] = False

    @property
    def bias(self) -> float:
        """As configured."""
        return self.objective.bias  # type: ignore[no-any-return]

    def loss(self, encoder: Encoder, batch: PairsBatch) -> LossTerms:
        """L_con + lambda L_mar."""
        weights, there = self.objective.weights, (batch.images_there, batch.texts_there)
        logits = sextuple.similarities(*embedded(encoder, batch), encoder.scale)
        own = sextuple.contrast(logits, encoder.bias, *there)
        terms = {"contrastive": Term(own, weights.contrastive)}
        if weights.margin:
            ranked = margin.ranking(logits, *there, self.objective.margins)
            terms["margin"] = Term(ranked, weights.margin)
        return terms
