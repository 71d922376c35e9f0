"""CS-CLIP: NegCLIP on captions, and on their units (entities and relations) with unit foils.

Source: "Half-Truths Break Similarity-Based Retrieval" (arXiv 2602.23906), and its authors' code:
two units of a caption a step, drawn anew, relations first; a unit is contrasted with those of the
batch and with its own foil. Theirs come from a language model, and half
of their entities are joined with another by "and"; here the parse gives units and foils, and
entities stay single.

Shapes: m rows of a batch, B units a row, T tokens of context, D width of the joint space.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import torch
from pydantic import NonNegativeFloat, PositiveInt

from compo_pipeline.core.records import Caption, Parse, View
from compo_pipeline.core.settings import Share, settings
from compo_pipeline.language.editing import Generated, Generator, token_text
from compo_pipeline.language.replacements import Replacer
from compo_pipeline.language.units import Category, foil, units
from compo_pipeline.losses.negclip import negclip, own_negative
from compo_pipeline.methods.contract import (
    Encoder,
    LossTerms,
    Objective,
    Sampler,
    Term,
    ViewContext,
    embed_texts,
)
from compo_pipeline.methods.negclip import NegativeViews, Rule, Rules, TextPairs, TextPairsBatch
from compo_pipeline.methods.views import from_table, single_view


@settings
class CsClipViews(NegativeViews):
    """Settings of CS-CLIP's views: a negative of the caption, and units with a foil each.

    Units are the entities and relations that a caption names.
    """

    generators: Rules = ("negclip", "replace")
    """Rules for the negative of the whole caption, as for NegCLIP; the first that finds something
    writes it.
    """

    units: PositiveInt = 2
    """Units drawn for a caption in an epoch, one may come twice."""

    relations: Share = 1.0
    """Probability that a draw prefers relations to entities; without one of the kind that is
    preferred it takes the other.
    """


@settings
class CsClipWeights:
    """Weights of CS-CLIP's losses: on captions, and on units (entities and relations).

    0 leaves the second one out.
    """

    captions: NonNegativeFloat = 1.0
    """Weight of the contrast of images with captions and their negatives."""

    units: NonNegativeFloat = 0.5
    """Weight of the contrast of images with units and their foils; 0 leaves it out."""


@settings
class CsClipObjective(Objective):
    """Settings of CS-CLIP's training: weights of the losses, and trained towers."""

    weights: CsClipWeights = CsClipWeights()
    """Weights of the losses."""


class CsClip(TextPairs):
    """The CS-CLIP method: contrasts captions, and their entities and relations, with foils."""

    name = "cs_clip"
    views_type = CsClipViews
    objective_type = CsClipObjective
    view_settings: CsClipViews
    objective: CsClipObjective
    annotations = ("negatives",)
    """Fields of an external table that views can use: negatives of the whole caption."""

    def sampler(self, captions: Sequence[Caption], context: ViewContext) -> Sampler:
        """A function from a caption to its view: caption, and entities or relations, with foils."""
        rules = {name: self.rule(name) for name in self.view_settings.generators}
        source = self.replacer()

        def view(caption: Caption) -> View:
            parse = context.parses[caption.sample_id]
            own = _caption_negative(caption, parse, rules, context)
            pairs: list[tuple[str, Generated | None]] = [(caption.sentences[0], own)]
            draws = context.rng("units", caption)
            for _ in range(self.view_settings.units):
                preferred = draws.random() < self.view_settings.relations
                order: tuple[Category, ...] = ("relation", "entity")
                for category in order if preferred else order[::-1]:
                    if drawn := _draw_unit(parse, category, draws, source):
                        pairs.append(drawn)
                        break
            texts, negatives = zip(*pairs, strict=True)
            return single_view(caption, texts, negatives, context.language)

        return view

    def loss(self, encoder: Encoder, batch: TextPairsBatch) -> LossTerms:
        """Weighted losses: NegCLIP's on captions, and entities and relations against their foils.

        The latter is the mean over the places of units.
        """
        weights, scale = self.objective.weights, encoder.scale
        images = encoder.images(batch.images)
        texts, negatives = embed_texts(encoder, batch.texts)  # [m, B + 1, D]
        there, foiled = batch.valid
        own = negclip(images, texts[:, 0], negatives[:, 0], foiled[:, 0], scale)
        terms = {"captions": Term(own, weights.captions)}
        if weights.units and texts.shape[1] > 1:
            losses = [
                own_negative(images, texts[:, k], negatives[:, k], there[:, k], foiled[:, k], scale)
                for k in range(1, texts.shape[1])
            ]
            terms["units"] = Term(torch.stack(losses).mean(), weights.units)
        return terms


def _caption_negative(
    caption: Caption, parse: Parse, rules: Mapping[Rule, Generator], context: ViewContext
) -> Generated | None:
    """Negative of a caption's first sentence, by a table or a rule."""
    table = context.annotations
    if "negatives" in table.contents:
        return from_table(table.negative(caption.sample_id, context.rng("table", caption)))
    drawn = (rule(parse, context.rng(name, caption)) for name, rule in rules.items())
    return next(filter(None, drawn), None)


def _draw_unit(
    parse: Parse, category: Category, rng: random.Random, source: Replacer
) -> tuple[str, Generated] | None:
    """A random entity or relation of a parse with a rule-made foil, or None without a foil."""
    found = [unit for unit in units(parse) if unit.category == category]
    for unit in rng.sample(found, len(found)):
        if made := foil(parse, unit, rng, source):
            return token_text(parse, *unit.phrase), made
    return None
