"""DAC: dense captions of an image as instances, some of which are true, with negatives.

Source: "Dense and Aligned Captions (DAC) Promote Compositional Reasoning in VL Models" (Doveh et
al. 2023), and its authors' code: CLIP and S-Neg on the caption, and multiple-instance losses on
sentences that are drawn, with replacement, among the dense captions and the caption itself. They
caption segments of the image or ask a language model for what else may be seen; here the sentences
of the caption row are the dense captions: bring such data (docs/how-to/your-data.md). Negatives are
replaced words, where the authors mix look-up tables and a masked language model.

Shapes: m rows of a batch, B sentences a row, T tokens of context.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import Field, NonNegativeFloat, PositiveInt

from compo_pipeline.core.records import Caption, View
from compo_pipeline.core.settings import settings
from compo_pipeline.language.editing import Generated
from compo_pipeline.losses.multiple_instance import multiple_instance, multiple_negatives
from compo_pipeline.methods.contract import (
    Encoder,
    LossTerms,
    Sampler,
    Term,
    ViewContext,
    embed_texts,
)
from compo_pipeline.methods.negclip import NegativeViews, Rules, TextPairs, TextPairsBatch
from compo_pipeline.methods.sneg import SnegObjective, SnegWeights, contrastive_terms
from compo_pipeline.methods.views import from_table, single_view


@settings
class DacMilViews(NegativeViews):
    """Settings of DAC-MIL's views: a negative for the caption and for each drawn sentence."""

    generators: Annotated[Rules, Field(max_length=1)] = ("replace",)
    """Rule that writes the negatives, as for NegCLIP. Exactly one."""

    sentences: PositiveInt = 10
    """Number of sentences drawn for a caption in an epoch."""


@settings
class DacMilWeights(SnegWeights):
    """Weights of DAC's losses: CLIP's, S-Neg, and two multiple-instance losses.

    0 leaves one of the last three out.
    """

    instances: NonNegativeFloat = 1.0
    """Weight of the loss that contrasts an image's sentences with those of the batch."""

    instance_negatives: NonNegativeFloat = 1.0
    """Weight of the loss that contrasts an image's sentences with their own negatives."""


@settings
class DacMilObjective(SnegObjective):
    """Settings of DAC-MIL's training: weights of the losses, and trained towers."""

    weights: DacMilWeights = DacMilWeights()
    """Weights of the losses."""


class DacMil(TextPairs):
    """The DAC method: multiple-instance losses on several sentences of an image."""

    name = "dac_mil"
    views_type = DacMilViews
    objective_type = DacMilObjective
    sentences = 2
    view_settings: DacMilViews
    objective: DacMilObjective
    annotations = ("negatives",)
    """Fields of an external table that views can use: negatives of any sentence of a row."""
    annotated_sentences = None

    def sampler(self, captions: Sequence[Caption], context: ViewContext) -> Sampler:
        """A function from a caption to its view: caption and drawn sentences, with negatives."""
        (name,) = self.view_settings.generators
        rule, table = self.rule(name), context.annotations

        def negative(caption: Caption, place: int, draws: random.Random) -> Generated | None:
            if "negatives" in table.contents:
                return from_table(table.negative(caption.sample_id, draws, place))
            parse = context.parse(caption, place)
            return rule(parse, draws) if parse else None

        def view(caption: Caption) -> View:
            draws = context.rng("sentences", caption)
            places = draws.choices(range(len(caption.sentences)), k=self.view_settings.sentences)
            chance = context.rng(name, caption)
            found = [negative(caption, place, chance) for place in (0, *places)]
            positives = [caption.sentences[place] for place in (0, *places)]
            return single_view(caption, positives, found, context.language)

        return view

    def loss(self, encoder: Encoder, batch: TextPairsBatch) -> LossTerms:
        """Weighted losses: CLIP's and S-Neg on captions, multiple-instance losses on sentences."""
        weights, scale, valid = self.objective.weights, encoder.scale, batch.valid[1]
        images = encoder.images(batch.images)
        texts, negatives = embed_texts(encoder, batch.texts)  # [m, B + 1, D]
        own = torch.stack([texts[:, 0], negatives[:, 0]], dim=1)
        terms = contrastive_terms(
            self.objective, images, own, valid[:, :1], scale, negatives_in_contrast=True
        )
        texts, negatives, valid = texts[:, 1:], negatives[:, 1:], valid[:, 1:]
        if weights.instances:
            among = multiple_instance(images, texts, scale)
            terms["instances"] = Term(among, weights.instances)
        if weights.instance_negatives:
            against = multiple_negatives(images, texts, negatives, valid, scale)
            terms["instance_negatives"] = Term(against, weights.instance_negatives)
        return terms
