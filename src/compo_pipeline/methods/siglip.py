"""Plain SigLIP fine-tuning: a sigmoid for each pair in place of a softmax over the batch.

It is the control of methods that tell pairs apart one by one, and a method of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compo_pipeline.losses import contrastive
from compo_pipeline.methods.clip import Clip, ClipObjective, ClipViews, PairBatch
from compo_pipeline.methods.contract import Encoder, LossTerms, Term

SOFTMAX_TRAINED = -30.0


@dataclass(frozen=True)
class SiglipObjective(ClipObjective):
    """What is trained, and from where.

    Attributes:
        bias: where logit_bias starts on a base that was trained with a softmax and has none. The
            default suits a scale of 100: with -10, as SigLIP starts from random weights, pairs
            that do not match would start at +8.
    """

    bias: float = SOFTMAX_TRAINED


class Siglip(Clip):
    """SigLIP fine-tuning on single images."""

    name: ClassVar[str] = "siglip"
    objective_type: ClassVar[type] = SiglipObjective

    def __init__(self, views: ClipViews, objective: SiglipObjective) -> None:
        super().__init__(views, objective)
        self.start = objective.bias

    @property
    def bias(self) -> float:
        """As configured."""
        return self.start

    def loss(self, encoder: Encoder, batch: PairBatch) -> LossTerms:
        """The sigmoid loss."""
        images, texts = encoder.images(batch.images), encoder.texts(batch.texts)
        own = contrastive.sigmoid(images, texts, encoder.scale, encoder.bias)
        return {"contrastive": Term(own, 1.0)}
