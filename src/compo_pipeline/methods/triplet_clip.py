"""TripletCLIP: NegCLIP's loss on real pairs, and on negative pairs with synthetic images.

Source: "TripletCLIP: Improving Compositional Reasoning of CLIP via Synthetic Vision-Language
Negatives" (Patel et al. 2024): NegCLIP's loss of real pairs against negative captions, and the same
of negative pairs against real captions.
"""

from __future__ import annotations

from compo_pipeline.core.settings import settings
from compo_pipeline.losses.negclip import negclip
from compo_pipeline.losses.sextuple import NEGATIVE, REAL
from compo_pipeline.methods.contract import Encoder, LossTerms, Objective, Term
from compo_pipeline.methods.counterfactual_pairs import CounterfactualPairs, PairsBatch, embed_pairs


@settings
class TripletClipObjective(Objective):
    """Settings of TripletCLIP's training: weights of the losses, and trained towers."""

    images: bool = True
    """Whether the images of the negatives take part. Without them, the method is NegCLIP."""


class TripletClip(CounterfactualPairs):
    """The TripletCLIP method: NegCLIP's loss of real pairs and of synthetic negative pairs.

    Rephrased captions and their images take no part.
    """

    name = "triplet_clip"
    objective_type = TripletClipObjective
    kinds = (REAL, NEGATIVE)

    def loss(self, encoder: Encoder, batch: PairsBatch) -> LossTerms:
        """Weighted losses: NegCLIP's of real pairs, and of negative pairs that have an image."""
        scale, (images, texts) = encoder.scale, embed_pairs(encoder, batch)
        there = batch.texts_there[NEGATIVE]
        real = negclip(images[REAL], texts[REAL], texts[NEGATIVE], there, scale)
        terms = {"real": Term(real, 1.0)}
        whole = there & batch.images_there[NEGATIVE]
        if whole.any():
            own = images[NEGATIVE][whole], texts[NEGATIVE][whole]
            every = there.new_ones(len(there))
            terms["synthetic"] = Term(negclip(*own, texts[REAL], every, scale), 1.0)
        return terms
