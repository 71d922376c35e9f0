"""Hard negatives written by rule for each caption: views and batches of NegCLIP and FSC-CLIP.

Shapes: m rows of a batch, K negatives a row, T tokens of context.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from compo_pipeline.language.editing import Generator
from compo_pipeline.language.reordering import shuffle_bigrams, swap_phrases
from compo_pipeline.language.replacements import replacer
from compo_pipeline.language.swaps import swap_within
from compo_pipeline.methods.contract import Collated, Drawing, Example, ImageInput, Reader, Tower
from compo_pipeline.methods.provenance import Origin, provenance
from compo_pipeline.methods.singles import single_image, single_view
from compo_pipeline.records import Caption, View

Rule = Literal["negclip", "replace", "bigram", "swap"]


@dataclass(frozen=True)
class NegativeViews:
    """What the negatives of a caption are made by.

    Attributes:
        generators: one negative each: `negclip` exchanges two words or phrases of a kind, `replace`
            a thing, attribute or relation for another, `bigram` shuffles pairs of words, `swap`
            exchanges two words of any one part of speech (CLIC's rule, within the caption).
        replacements: where `replace` finds its words: the shipped lexicon, or WordNet through nltk.
        careful: swaps leave out what makes broken English, or says the same; they find less.
    """

    generators: tuple[Rule, ...]
    replacements: Literal["lexicon", "wordnet"] = "lexicon"
    careful: bool = False

    def __post_init__(self) -> None:
        """A rule gives one negative."""
        if not self.generators or len(set(self.generators)) < len(self.generators):
            raise ValueError(
                f"generators: expected each of negclip, replace, bigram, swap at most once and "
                f"one at least, got {list(self.generators)}"
            )


class NegativesBatch(NamedTuple):
    """m rows, each with its caption and K places for hard negatives."""

    images: Tensor  # [m, 3, H, W], or [m] rows of features
    texts: Tensor  # [m, K + 1, T], the caption first
    valid: Tensor  # [m, K] bool: the negative exists


class TextNegatives:
    """What methods with negatives of a caption's own have in common: all but the loss.

    Each rule draws on its own: leaving one out leaves the others' texts as they are.
    """

    name: ClassVar[str]
    sentences: ClassVar[int] = 1
    parsed_sentences: ClassVar[int] = 1
    trains_scale: ClassVar[bool] = True
    bias: ClassVar[float | None] = None

    def __init__(self, views: NegativeViews, objective: Any) -> None:
        self.settings, self.objective = views, objective

    @property
    def trains(self) -> frozenset[Tower]:
        """As configured; both towers in the paper."""
        return frozenset(self.objective.trains)

    def views(self, captions: Sequence[Caption], drawing: Drawing) -> Iterator[View]:
        """Each caption, and what the rules make of it."""
        rules = {name: self._rule(name) for name in self.settings.generators}
        for caption in captions:
            made = [
                rule(drawing.parses[caption.sample_id], drawing.rng(name, caption))
                for name, rule in rules.items()
            ]
            origins = [one if one is None else Origin.of(one) for one in made]
            texts = [one if one is None else one.text for one in made]
            yield single_view(
                caption, caption.sentences[:1], texts, provenance(drawing.language, origins)
            )

    def _rule(self, name: Rule) -> Generator:
        if name == "replace":
            return replacer(self.settings.replacements, key=f"{self.name}.views.replacements")
        rules: dict[Rule, Generator] = {
            "negclip": partial(swap_phrases, careful=self.settings.careful),
            "bigram": shuffle_bigrams,
            "swap": partial(swap_within, careful=self.settings.careful),
        }
        return rules[name]

    def needed(self, example: Example, step: int) -> tuple[ImageInput]:
        """Always the caption's own image."""
        return (single_image(example),)

    def collate(self, examples: Sequence[Example], step: int, reader: Reader) -> Collated:
        """Images, captions and negatives; one that reads as its caption is absent, and counted.

        The empty text that stands in for a missing negative is never looked at: it is masked.
        """
        rows = [
            [row.view.positives[0].lower(), *((text or "").lower() for text in row.view.negatives)]
            for row in examples
        ]
        texts = reader.tokens([text for row in rows for text in row]).view(
            len(rows), len(rows[0]), -1
        )
        made = torch.tensor([[text is not None for text in row.view.negatives] for row in examples])
        equal = made & (texts[:, 1:] == texts[:, :1]).all(-1)
        valid = made & ~equal
        counts = {
            "rows": len(rows),
            "rows without a negative": int((~valid.any(1)).sum()),
            "negatives that could not be made": int((~made).sum()),
            "negatives equal to a positive": int(equal.sum()),
        }
        images = reader.images([single_image(example) for example in examples])
        return Collated(NegativesBatch(images, texts, valid), counts)
