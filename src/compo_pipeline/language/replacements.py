"""FSC-CLIP's `replace`: one entity, attribute or relation of a caption is replaced by another.

Source: "FSC-CLIP", App. A.1. Up to two candidates per element of the scene graph are drawn by
their weight, then one of all of them uniformly. Synonyms, and words that the source calls
compatible, are no candidates: they may be true of the same image.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Set
from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple

from compo_pipeline.core.records import Parse
from compo_pipeline.language.alternatives import (
    Alternative,
    ReplacementSource,
    Source,
    WordNetCousins,
    lexicon_alternatives,
    open_wordnet,
)
from compo_pipeline.language.editing import (
    Edit,
    Generated,
    apply_edits,
    is_movable,
    replacement_edits,
    token_text,
)
from compo_pipeline.language.scene_graph import Category, Element, scene_graph

CATEGORIES: frozenset[Category] = frozenset({"entity", "attribute", "relation"})
_PER_ELEMENT = 2
_COUNTING = frozenset({"a", "an", "one", "another", "each", "every"})


class Replacement(NamedTuple):
    """A replaced scene-graph element: its category, the token edits, and its old and new words."""

    category: Category
    edits: list[Edit]
    words: tuple[str, str]


@dataclass(frozen=True, slots=True)
class Replacer:
    """Generates FSC-CLIP's `replace` hard negatives: one element of a caption, drawn and replaced.

    Attributes:
        source: gives alternatives.
        categories: kinds of elements that may be replaced.
        determiners: whether a determiner is an attribute, although nothing replaces it.
    """

    source: Source
    categories: Set[str] = CATEGORIES
    determiners: bool = False

    def __call__(self, parse: Parse, rng: random.Random) -> Generated | None:
        """A caption with one element replaced.

        Returns:
            None where the caption has fewer than two entities, or no attribute and no relation,
            or where no element has an alternative.
        """
        graph = scene_graph(parse)
        determined = self.determiners and "DET" in parse.upos
        modified = determined or any(one.category != "entity" for one in graph.elements)
        if graph.entities < 2 or not modified:
            return None
        drawn = self.replacements(parse, graph.elements, rng)
        if not drawn:
            return None
        replacement = rng.choice(drawn)
        text = apply_edits(parse, replacement.edits)
        return Generated(text, "replace", replacement.category, replacement.words)

    def replacements(
        self, parse: Parse, elements: Iterable[Element], rng: random.Random
    ) -> list[Replacement]:
        """Up to two replacements of each scene-graph element, drawn from its alternatives."""
        return [
            _make_replacement(parse, element, word)
            for element in elements
            if self._may_replace(element) and is_movable(parse, element.start, element.end)
            for word in self._candidates(parse, element, rng)
        ]

    def all_replacements(self, parse: Parse, element: Element) -> list[Replacement]:
        """All replacements of a scene-graph element that `replacements` may draw, in order."""
        if not (self._may_replace(element) and is_movable(parse, element.start, element.end)):
            return []
        return [
            _make_replacement(parse, element, one.word)
            for one in self._fitting_alternatives(parse, element)
        ]

    def _may_replace(self, element: Element) -> bool:
        """Whether the replacer's categories allow replacing a scene-graph element."""
        verb = element.category == "relation" and element.upos == "VERB"
        return element.category in self.categories or (verb and "verb" in self.categories)

    def _candidates(self, parse: Parse, element: Element, rng: random.Random) -> list[str]:
        """Up to two words that may replace a scene-graph element, drawn by their weights."""
        pool = self._fitting_alternatives(parse, element)
        drawn: list[str] = []
        while pool and len(drawn) < _PER_ELEMENT:
            (one,) = rng.choices(pool, [one.weight for one in pool])
            pool.remove(one)
            drawn.append(one.word)
        return drawn

    def _fitting_alternatives(self, parse: Parse, element: Element) -> list[Alternative]:
        """Alternatives that fit an element's use as count or mass noun, not yet in the caption."""
        word = token_text(parse, element.start, element.end).lower()
        found = self.source(word, element.upos, element.tag, element.conditions)
        said = f" {' '.join(parse.words).lower()} "
        use = _noun_use(parse, element)
        return [
            one
            for one in found
            if f" {one.word} " not in said
            and (one.countable if use == "counted" else one.mass or use != "mass")
        ]


def _noun_use(parse: Parse, element: Element) -> Literal["counted", "mass", "any"]:
    """Whether a singular noun is used as counted ("a dog"), mass ("snow") or either ("the dog")."""
    if element.tag != "NN" or element.category != "entity":
        return "any"
    index = element.start - 1
    while index >= 0 and parse.upos[index] in ("ADJ", "ADV", "NUM", "NOUN", "PUNCT"):
        index -= 1
    if index >= 0 and parse.words[index].lower() in _COUNTING:
        return "counted"
    return "any" if index >= 0 and parse.upos[index] in ("DET", "PRON") else "mass"


def _make_replacement(parse: Parse, element: Element, word: str) -> Replacement:
    """The replacement of a scene-graph element by a given lower-case word."""
    edits = replacement_edits(parse, (element.start, element.end), word)
    old = token_text(parse, element.start, element.end)
    return Replacement(element.category, edits, (old, edits[-1].text))


def replacer(
    source: ReplacementSource = "lexicon",
    categories: Iterable[str] = CATEGORIES,
    *,
    key: str = "source",
) -> Replacer:
    """The `Replacer` that draws from a named source.

    Args:
        source: `lexicon` (shipped), or `wordnet_cousins`, through nltk where the user has installed
            it.
        categories: categories of elements that may be replaced: entity, attribute, relation, and
            verb for the relations that are verbs.
        key: the YAML key of `source`, for errors.

    Raises:
        SettingsError: WordNet is wanted and not there.
    """
    chosen = frozenset(categories)
    if source == "lexicon":
        return Replacer(lexicon_alternatives, chosen)
    cousins = WordNetCousins(open_wordnet(key))
    return Replacer(cousins.alternatives, chosen, determiners=True)


@cache
def shipped_replacer() -> Replacer:
    """The `Replacer` that draws from the shipped lexicon, for elements of all categories."""
    return replacer()
