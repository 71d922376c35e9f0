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

from compo_pipeline.configuration import SettingsError
from compo_pipeline.language.alternatives import (
    Source,
    WordNetCousins,
    WordNetSource,
    from_lexicon,
    open_wordnet,
)
from compo_pipeline.language.concreteness import Concreteness, draw
from compo_pipeline.language.editing import Edit, Generated, edited, movable, replace_words, written
from compo_pipeline.language.scene_graph import Category, Element, scene_graph
from compo_pipeline.records import Parse

Kind = Category | Literal["verb"]
"""What may be replaced: a category of elements, or of relations the verbs alone."""

CATEGORIES: frozenset[Kind] = frozenset({"entity", "attribute", "relation"})
_KINDS: frozenset[Kind] = frozenset({*CATEGORIES, "verb"})
_PER_ELEMENT = 2
_COUNTING = frozenset({"a", "an", "one", "another", "each", "every"})


class Replacement(NamedTuple):
    """The edits that replace an element, its category, and the words before and after."""

    category: Category
    edits: list[Edit]
    words: tuple[str, str]


@dataclass(frozen=True, slots=True)
class Replacer:
    """Generator of replacements.

    Attributes:
        source: gives alternatives.
        categories: kinds of elements that may be replaced.
        determiners: whether a determiner is an attribute, although nothing replaces it.
        concreteness: how the element that is replaced is drawn; None draws all alike.
    """

    source: Source
    categories: Set[Kind] = CATEGORIES
    determiners: bool = False
    concreteness: Concreteness | None = None

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
        replacement = draw(rng, drawn, lambda one: one.words[:1], self.concreteness)
        text, spans = edited(parse, replacement.edits)
        return Generated(text, "replace", replacement.category, replacement.words, spans)

    def replacements(
        self, parse: Parse, elements: Iterable[Element], rng: random.Random
    ) -> list[Replacement]:
        """Up to two replacements of each element that can be replaced."""
        return [
            _replacement(parse, element, word)
            for element in elements
            if self._replaces(element) and movable(parse, element.start, element.end)
            for word in self._candidates(parse, element, rng)
        ]

    def _replaces(self, element: Element) -> bool:
        verb = element.category == "relation" and element.upos == "VERB"
        return element.category in self.categories or (verb and "verb" in self.categories)

    def _candidates(self, parse: Parse, element: Element, rng: random.Random) -> list[str]:
        """Up to two alternatives, drawn by weight; none that the caption already names."""
        word = written(parse, element.start, element.end).lower()
        found = self.source(word, element.upos, element.tag, element.conditions)
        said = f" {' '.join(parse.words).lower()} "
        use = _use(parse, element)
        pool = [
            one
            for one in found
            if f" {one.word} " not in said
            and (one.countable if use == "counted" else one.mass or use != "mass")
        ]
        drawn: list[str] = []
        while pool and len(drawn) < _PER_ELEMENT:
            (one,) = rng.choices(pool, [one.weight for one in pool])
            pool.remove(one)
            drawn.append(one.word)
        return drawn


def _use(parse: Parse, element: Element) -> Literal["counted", "mass", "any"]:
    """How a singular noun is used, according to the determiner of its phrase or its lack."""
    if element.tag != "NN" or element.category != "entity":
        return "any"
    index = element.start - 1
    while index >= 0 and parse.upos[index] in ("ADJ", "ADV", "NUM", "NOUN", "PUNCT"):
        index -= 1
    if index >= 0 and parse.words[index].lower() in _COUNTING:
        return "counted"
    return "any" if index >= 0 and parse.upos[index] in ("DET", "PRON") else "mass"


def _replacement(parse: Parse, element: Element, word: str) -> Replacement:
    edits = replace_words(parse, (element.start, element.end), word)
    old = written(parse, element.start, element.end)
    return Replacement(element.category, edits, (old, edits[-1].text))


def replacer(
    source: str = "lexicon", categories: Iterable[str] = CATEGORIES, *, key: str = "source"
) -> Replacer:
    """A generator of replacements.

    Args:
        source: `lexicon` (shipped); `wordnet` or `wordnet_cousins`, through nltk where the user has
            installed it.
        categories: of elements that may be replaced: entity, attribute, relation, and verb for
            the relations that are verbs.
        key: the YAML key of `source`, for errors.

    Raises:
        SettingsError: unknown names, or WordNet is wanted and not there.
    """
    wanted = set(categories)
    chosen = {kind for kind in _KINDS if kind in wanted}
    if unknown := wanted - _KINDS:
        raise SettingsError(f"{sorted(unknown)} are no categories: expected {sorted(_KINDS)}")
    if source == "lexicon":
        return Replacer(from_lexicon, chosen)
    if source == "wordnet":
        return Replacer(WordNetSource(open_wordnet(key, source)).alternatives, chosen)
    if source == "wordnet_cousins":
        cousins = WordNetCousins(open_wordnet(key, source))
        return Replacer(cousins.alternatives, chosen, determiners=True)
    raise SettingsError(f"{key} is {source!r}: expected lexicon, wordnet or wordnet_cousins")


@cache
def shipped() -> Replacer:
    """The generator with the shipped lexicon and all categories."""
    return replacer()
