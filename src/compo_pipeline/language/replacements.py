"""FSC-CLIP's `replace`: one entity, attribute or relation of a caption gives way to another.

Source: "FSC-CLIP", App. A.1. Up to two candidates per element of the scene graph are drawn by
their weight, then one of all of them uniformly. Candidates exclude what may be true all the same:
synonyms, and words that the source calls compatible.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Literal, NamedTuple, Protocol

from compo_pipeline.configuration import SettingsError
from compo_pipeline.language.editing import Edit, edited, movable, written
from compo_pipeline.language.generated import Generated
from compo_pipeline.language.inflection import article, capitalised_as
from compo_pipeline.language.lexicon import Lemma, Lexicon, load_lexicon
from compo_pipeline.language.scene_graph import MODIFYING, Category, Element, scene_graph
from compo_pipeline.records import Parse

CATEGORIES: frozenset[Category] = frozenset({"entity", "attribute", "relation"})
_PER_ELEMENT = 2
_ARTICLES = frozenset({"a", "an"})
_COUNTING = frozenset({"a", "an", "one", "another", "each", "every"})


class Alternative(NamedTuple):
    """A form that may take a word's place: how likely it is drawn, and, of a singular noun,
    whether it can stand behind "a" and without a determiner.
    """

    word: str
    weight: int
    countable: bool = True
    mass: bool = True


class Source(Protocol):
    """Where alternatives come from."""

    def alternatives(
        self, word: str, upos: str, tag: str, conditions: frozenset[str]
    ) -> Sequence[Alternative]:
        """Forms with the same tag that cannot be true where this one (lower-case) is.

        Args:
            word: one word or several, as `scene_graph.Element` spans them.
            upos: its part of speech.
            tag: its fine tag.
            conditions: as in `scene_graph.Element`.
        """
        ...


class LexiconSource:
    """Alternatives from the caption lexicon: members of the same group, and opposites."""

    def __init__(self, lexicon: Lexicon) -> None:
        self._lexicon = lexicon
        self.alternatives = lru_cache(maxsize=20_000)(self._alternatives)

    def _alternatives(
        self, word: str, upos: str, tag: str, conditions: frozenset[str]
    ) -> tuple[Alternative, ...]:
        lemma = self._lexicon.reading(word, upos, tag)
        if lemma is None:
            return ()
        # A caption that says "his" wants no woman in his place.
        unfit = {"he", "she"} - conditions if {"he", "she"} & conditions else set()
        found = {
            one.name: one
            for one in self._others(lemma, conditions)
            if tag in one.forms and one.pronoun not in unfit
        }
        return tuple(
            Alternative(one.forms[tag], 3**one.weight, one.countable, one.mass)
            for one in found.values()
        )

    def _others(self, lemma: Lemma, conditions: Set[str]) -> Iterator[Lemma]:
        compatible = self._lexicon.compatible(lemma)
        for group in lemma.groups:
            if _stands(lemma.upos, group, conditions):
                for one in self._lexicon.group(group, lemma.upos):
                    if one.name not in compatible:
                        yield one
        for opposite in lemma.opposites:
            wanted = opposite.kinds or ({"transitive"} if lemma.upos == "VERB" else set())
            if not wanted or wanted & conditions:
                yield self._lexicon.lemmas[opposite.lemma, lemma.upos]


def _stands(upos: str, group: str, conditions: Set[str]) -> bool:
    """Whether the members of a group stand like this. Groups of verbs are named by what follows
    them (transitive, intransitive) or who does it (animate), some of adjectives by what they are
    said of (place).
    """
    area, dot, _ = group.partition(".")
    if upos == "VERB" or (upos == "ADJ" and dot):
        return area in conditions
    return "before" not in conditions or group in MODIFYING


@dataclass(frozen=True, slots=True)
class Replacer:
    """The generator, with where its words come from and which categories it may touch.

    Attributes:
        source: gives alternatives.
        lexicon: what the scene graph is read with.
        categories: of elements that may be replaced.
    """

    source: Source
    lexicon: Lexicon = field(default_factory=load_lexicon)
    categories: Set[Category] = CATEGORIES

    def __call__(self, parse: Parse, rng: random.Random) -> Generated | None:
        """A caption with one element replaced.

        Returns:
            None where the caption has fewer than two entities, or no attribute and no relation,
            or where no element has an alternative.
        """
        graph = scene_graph(parse, self.lexicon)
        if graph.entities < 2 or all(one.category == "entity" for one in graph.elements):
            return None
        drawn = [
            (element, word)
            for element in graph.elements
            if element.category in self.categories and movable(parse, element.start, element.end)
            for word in self._candidates(parse, element, rng)
        ]
        return _replaced(parse, *rng.choice(drawn)) if drawn else None

    def _candidates(self, parse: Parse, element: Element, rng: random.Random) -> list[str]:
        """Up to two alternatives, drawn by weight; none that the caption already names."""
        word = written(parse, element.start, element.end).lower()
        found = self.source.alternatives(word, element.upos, element.tag, element.conditions)
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
    """How a singular noun is used, as the determiner of its phrase tells, or the lack of one."""
    if element.tag != "NN" or element.category != "entity":
        return "any"
    index = element.start - 1
    while index >= 0 and parse.upos[index] in ("ADJ", "ADV", "NUM", "NOUN", "PUNCT"):
        index -= 1
    if index >= 0 and parse.words[index].lower() in _COUNTING:
        return "counted"
    return "any" if index >= 0 and parse.upos[index] in ("DET", "PRON") else "mass"


def _replaced(parse: Parse, element: Element, word: str) -> Generated:
    edits = put(parse, element.start, element.end, word)
    text, spans = edited(parse, edits)
    old = written(parse, element.start, element.end)
    return Generated(text, "replace", element.category, (old, edits[-1].text), spans)


def put(parse: Parse, start: int, end: int, word: str) -> list[Edit]:
    """Edits that put a lower-case word in the place of the words `[start, end)`: with their
    capitals, and with the article before it mended.
    """
    new = capitalised_as(word, written(parse, start, end))
    edits = [Edit(start, end, new)]
    before = parse.words[start - 1] if start else ""
    if before.lower() in _ARTICLES and before.lower() != article(new):
        # "A" is the capital of "a" and of "an" alike: the word behind tells which.
        shouted = new.isupper() and len(new) > 1
        model = before if len(before) > 1 or not shouted else "AN"
        edits.insert(0, Edit(start - 1, start, capitalised_as(article(new), model)))
    return edits


def replacer(
    source: str = "lexicon", categories: Iterable[str] = CATEGORIES, *, key: str = "source"
) -> Replacer:
    """A generator of replacements.

    Args:
        source: `lexicon` (shipped), or `wordnet`, through nltk where the user has installed it.
        categories: of elements that may be replaced: entity, attribute, relation.
        key: the YAML key of `source`, for errors.

    Raises:
        SettingsError: unknown names, or WordNet is wanted and not there.
    """
    wanted = set(categories)
    chosen = frozenset(one for one in CATEGORIES if one in wanted)
    if unknown := wanted - CATEGORIES:
        raise SettingsError(f"{sorted(unknown)} are no categories: expected {sorted(CATEGORIES)}")
    lexicon = load_lexicon()
    if source == "lexicon":
        return Replacer(LexiconSource(lexicon), lexicon, chosen)
    if source == "wordnet":
        from compo_pipeline.language.wordnet import WordNetSource, open_wordnet

        return Replacer(WordNetSource(open_wordnet(key), lexicon), lexicon, chosen)
    raise SettingsError(f"{key} is {source!r}: expected lexicon or wordnet")


@cache
def _shipped() -> Replacer:
    return replacer()


def replace(parse: Parse, rng: random.Random) -> Generated | None:
    """`Replacer` with the shipped lexicon and all categories."""
    return _shipped()(parse, rng)
