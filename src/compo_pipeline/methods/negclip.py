"""NegCLIP: hard negatives as further texts of the contrast, the baseline of both papers.

`TextNegatives` has what it shares with FSC-CLIP: hard negatives written by rule for each caption,
in views and batches; `TextPairs` what DAC and CS-CLIP share, further texts of an image with a
negative each.

Source: CLIC paper, Eq. 2 (their variant: `generators: [swap]`, the text tower alone); FSC-CLIP
paper, Sec. 4.1, NegCLIP with negatives drawn afresh and no batch of similar images (their variant:
`generators: [negclip]`, both towers).

Shapes: m rows of a batch, K negatives and B further texts a row, T tokens of context.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from compo_pipeline.core.records import Caption, View
from compo_pipeline.core.settings import settings
from compo_pipeline.core.tables import ById, Table
from compo_pipeline.language.alternatives import ReplacementSource
from compo_pipeline.language.editing import Generated, Generator
from compo_pipeline.language.reordering import shuffle_bigrams, swap_phrases
from compo_pipeline.language.replacements import CATEGORIES, Replacer, replacer
from compo_pipeline.language.swaps import swap_within
from compo_pipeline.losses.negclip import negclip
from compo_pipeline.methods.contract import (
    Collated,
    Encoder,
    Example,
    ImageInput,
    LossTerms,
    Method,
    Objective,
    Preprocessor,
    Sampler,
    Term,
    ViewContext,
    embed_texts,
)
from compo_pipeline.methods.views import PAIR, from_table, single_image, single_view

Rule = Literal[
    "negclip",
    "replace",
    "bigram",
    "swap",
    "replace_entity",
    "replace_attribute",
    "replace_relation",
    "replace_verb",
    "replace_attribute_or_verb",
]

Rules = Annotated[tuple[Rule, ...], Field(min_length=1)]
"""Setting of views: the rules by which negatives are written, one at least."""


class ContrastedRow(NamedTuple):
    """A row of a batch: an image, its caption, and the caption's negatives."""

    image: ImageInput
    caption: str
    negatives: Sequence[str | None]


def contrasted_rows(example: Example) -> list[ContrastedRow]:
    """List of an example's rows in a batch: one, or two if the view is a pair of similar images."""
    view = example.view
    if view.kind != PAIR:
        return [ContrastedRow(single_image(example), view.positives[0], view.negatives)]
    half = len(view.negatives) // 2
    negatives = (view.negatives[:half], view.negatives[half:])
    return [
        ContrastedRow(ImageInput((image,)), text, own)
        for image, text, own in zip(view.images, view.positives, negatives, strict=True)
    ]


@settings
class NegativeViews:
    """Settings of views whose hard negatives are written by rules."""

    generators: Rules
    """Rules, each of which writes one negative; one that is listed twice draws twice. `negclip`
    exchanges two words or phrases of a kind. `replace` replaces a thing, attribute or relation.
    `bigram` shuffles pairs of words. `swap` exchanges two words of the same part of speech (CLIC's
    rule, within the caption). `replace_entity`, `replace_attribute`, `replace_relation`,
    `replace_verb` (relations except prepositions) and `replace_attribute_or_verb` only replace
    words of that kind."""

    replacements: ReplacementSource = "lexicon"
    """Source of the words of `replace`: the shipped lexicon, or WordNet through nltk, by the rule
    of FSC-CLIP's code."""

    careful: bool = False
    """Whether swaps leave out what makes broken English or keeps the meaning. Careful swaps find
    fewer negatives."""


class NegativesBatch(NamedTuple):
    """Batch of m images, each with its caption and up to K hard negatives."""

    images: Tensor  # [m, 3, H, W], or [m] rows of features
    texts: Tensor  # [m, K + 1, T], the caption first
    valid: Tensor  # [m, K] bool: the negative exists


class TextNegatives(Method):
    """Base class of methods with hard negatives of each caption.

    Subclasses add the loss.

    Each rule draws on its own: leaving one out leaves the others' texts as they are.
    """

    negatives_setting = "generators"
    view_settings: NegativeViews
    annotations: tuple[str, ...] = ("negatives", "neighbours")
    """Fields of an external table that views can use: negatives, and rows of similar images."""

    def sampler(self, captions: Sequence[Caption], context: ViewContext) -> Sampler:
        """A function from a caption to its view, with negatives by rules or from an external table.

        With a table of neighbours it is a pair: the caption's row and one with a similar image,
        with the same number of negatives. Draws are in the order of NegCLIP's `CsvDataset`
        (src/training/data.py of vinid/neg_clip): a negative, a neighbour, one of its negatives.
        """
        names = self.view_settings.generators
        before = [names[:place].count(name) for place, name in enumerate(names)]
        # A rule that is listed again draws again.
        draws_of = [f"{name} {n}" if n else name for name, n in zip(names, before, strict=True)]
        rules = dict(zip(draws_of, map(self.rule, names), strict=True))
        table = context.annotations
        rows = ById(Table.of(captions, Caption)) if "neighbours" in table.contents else {}

        def negatives(caption: Caption, draws: random.Random) -> list[Generated | None]:
            if "negatives" in table.contents:
                return [from_table(one) for one in table.negatives(caption.sample_id, draws)]
            parse = context.parses[caption.sample_id]
            return [rule(parse, context.rng(name, caption)) for name, rule in rules.items()]

        def view(caption: Caption) -> View:
            draws = context.rng("table", caption)
            written, positives = negatives(caption, draws), self.positives(caption, context)
            neighbour = table.neighbour(caption.sample_id, draws)
            if neighbour is None:
                return single_view(caption, positives, written, context.language)
            other = rows[neighbour]
            both = [*written, *negatives(other, draws)]
            texts = (*positives, *self.positives(other, context))
            return replace(
                single_view(caption, texts, both, context.language),
                kind=PAIR,
                sample_ids=(caption.sample_id, other.sample_id),
                images=(caption.image, other.image),
            )

        return view

    def images(self, example: Example, step: int) -> list[ImageInput]:
        """Images of an example: the image of each of its batch rows."""
        return [row.image for row in contrasted_rows(example)]

    def positives(self, caption: Caption, context: ViewContext) -> Sequence[str]:
        """Texts that are true of a caption's image: here only its first sentence."""
        return caption.sentences[:1]

    def further_terms(self, encoder: Encoder, batch: Any, captions: Tensor) -> LossTerms:
        """Loss terms that a subclass adds, from embeddings of the captions [m, D]."""
        return {}

    def rule(self, name: Rule) -> Generator:
        """The text-editing function of a rule, with the settings of the views."""
        if name.startswith("replace"):
            named = name.removeprefix("replace").removeprefix("_")
            return self.replacer(named.split("_or_") if named else CATEGORIES)
        careful = self.view_settings.careful
        rules: dict[Rule, Generator] = {
            "negclip": partial(swap_phrases, careful=careful),
            "bigram": shuffle_bigrams,
            "swap": partial(swap_within, careful=careful),
        }
        return rules[name]

    def replacer(self, categories: Iterable[str] = CATEGORIES) -> Replacer:
        """Generator of word replacements, with the settings of the views."""
        key = f"{self.name}.views.replacements"
        return replacer(self.view_settings.replacements, categories, key=key)

    def collate(
        self, examples: Sequence[Example], step: int, preprocessor: Preprocessor
    ) -> Collated:
        """Batch of images, captions and hard negatives.

        A negative with the same tokens as its caption is absent, and counted. The empty text in
        place of a missing negative is masked. Of a pair each row counts.
        """
        rows = [row for example in examples for row in contrasted_rows(example)]
        texts = [
            [row.caption.lower(), *((one or "").lower() for one in row.negatives)] for row in rows
        ]
        flat = preprocessor.tokens([text for row in texts for text in row])
        tokens = flat.view(len(rows), len(texts[0]), -1)
        written = torch.tensor([[one is not None for one in row.negatives] for row in rows])
        equal = written & (tokens[:, 1:] == tokens[:, :1]).all(-1)
        valid = written & ~equal
        counts = {
            "rows": len(rows),
            "rows without a negative": int((~valid.any(1)).sum()),
            "negatives that could not be made": int((~written).sum()),
            "negatives equal to a positive": int(equal.sum()),
        }
        images = preprocessor.images([row.image for row in rows])
        return Collated(NegativesBatch(images, tokens, valid), counts)


class TextPairsBatch(NamedTuple):
    """Batch of m images, each with B + 1 texts (first the caption) and their negatives."""

    images: Tensor  # [m, 3, H, W], or [m] rows of features
    texts: Tensor  # [2, m, B + 1, T]: the texts, then their negatives
    valid: Tensor  # [2, m, B + 1] bool: the text exists


class TextPairs(TextNegatives):
    """Base class of methods whose views have several texts, each with one negative.

    In their views `negatives` is parallel to `positives`, the caption first; a text that is missing
    has no negative either.
    """

    def collate(
        self, examples: Sequence[Example], step: int, preprocessor: Preprocessor
    ) -> Collated:
        """Batch of images, texts and their negatives.

        A negative with the same tokens as a text of its row is absent, and counted. The empty text
        in place of a missing one is masked.
        """
        views = [example.view for example in examples]
        rows = [view.positives for view in views] + [view.negatives for view in views]
        width = max(map(len, rows))
        flat = [text for row in rows for text in (*row, *[None] * (width - len(row)))]
        tokens = preprocessor.tokens([(text or "").lower() for text in flat])
        texts = tokens.view(2, len(views), width, -1)
        valid = torch.tensor([text is not None for text in flat]).view(2, len(views), width)
        alike = (texts[1][:, :, None] == texts[0][:, None]).all(-1) & valid[0][:, None]
        equal = valid[1] & alike.any(-1)
        counts = {
            "rows": len(views),
            "further texts": int(valid[0, :, 1:].sum()),
            "negatives that could not be made": int((valid[0] & ~valid[1]).sum()),
            "negatives equal to a positive": int(equal.sum()),
        }
        there = torch.stack([valid[0], valid[0] & valid[1] & ~equal])
        images = preprocessor.images([single_image(example) for example in examples])
        return Collated(TextPairsBatch(images, texts, there), counts)


@settings
class NegClipViews(NegativeViews):
    """Settings of NegCLIP's views: one swap in each caption."""

    generators: Rules = ("negclip",)


class NegClip(TextNegatives):
    """CLIP fine-tuning against the captions and all hard negatives of the batch."""

    name = "negclip"
    views_type = NegClipViews
    objective_type = Objective

    def loss(self, encoder: Encoder, batch: NegativesBatch) -> LossTerms:
        """NegCLIP's loss: hard negatives of a batch as further texts of images (CLIC, Eq. 2)."""
        images = encoder.images(batch.images)
        texts = embed_texts(encoder, batch.texts)
        negatives, valid = texts[:, 1:].flatten(0, 1), batch.valid.flatten()
        own = negclip(images, texts[:, 0], negatives, valid, encoder.scale)
        return {"negclip": Term(own, 1.0), **self.further_terms(encoder, batch, texts[:, 0])}
