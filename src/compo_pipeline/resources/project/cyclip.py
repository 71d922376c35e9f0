"""CyCLIP: CLIP with cyclic consistency (Goel et al. 2022, arXiv 2205.14459).

Shapes: m rows of a batch, D width of the joint space.
"""

from pydantic import NonNegativeFloat

from compo_pipeline.core.settings import settings
from compo_pipeline.losses import contrastive
from compo_pipeline.methods.clip import Clip, ClipObjective, PairBatch
from compo_pipeline.methods.contract import Encoder, LossTerms, Term
from compo_pipeline.methods.registry import MethodEntry


@settings
class CyclipObjective(ClipObjective):
    """Trained parameters, and the weights of the consistency terms."""

    cross_modal: NonNegativeFloat = 0.25
    """Weight of the asymmetry of the image-text similarities."""

    in_modal: NonNegativeFloat = 0.25
    """Weight of the difference between image-image and text-text similarities."""


class Cyclip(Clip):
    """CyCLIP on single images."""

    name = "cyclip"
    objective_type = CyclipObjective
    objective: CyclipObjective

    def loss(self, encoder: Encoder, batch: PairBatch) -> LossTerms:
        """CLIP's loss and the two consistency terms, each summed over [m, m] and divided by m."""
        images, texts = encoder.images(batch.images), encoder.texts(batch.texts)  # [m, D]
        similarity = images @ texts.T
        cross_modal = (similarity - similarity.T).square().sum() / len(images)
        in_modal = (images @ images.T - texts @ texts.T).square().sum() / len(images)
        return {
            "clip": Term(contrastive.clip(images, texts, encoder.scale), 1.0),
            "cross_modal": Term(cross_modal, self.objective.cross_modal),
            "in_modal": Term(in_modal, self.objective.in_modal),
        }


ENTRY = MethodEntry("cyclip", "CyCLIP", f"{__name__}:Cyclip")
