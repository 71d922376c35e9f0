"""Concepts of a caption: the noun phrases that a model is to find in its image.

Source: "C2LIP", Sec. 3: noun phrases from a dependency parse. The authors' published code asks a
language model for them instead, and leaves out generic places, repeated phrases and those of one
character; a caption without any is its own. Phrases that name nothing to be seen are left out here
too (docs/concepts.md): equal ones are in captions of unrelated images, each of which would be
a negative of the other's phrase.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from compo_pipeline.language.editing import NOUNS, Phrase, extent, key, noun_phrases_of
from compo_pipeline.records import Parse

# Not part of a phrase when they are at its edge: "'s reflection".
_EDGES = frozenset({"PART", "PUNCT"})
_ARTICLES = frozenset({"a", "an", "the"})
_PARTICIPLES = frozenset({"VBN", "VBG"})
_RELATING = frozenset({"ADP", "VERB"})
# Where something is, with these words alone before them: "in front", "on the left side of".
_PLACES = frozenset(
    """back background bottom center centre distance foreground front half left middle right side
    sides top""".split()
)
_PLACING = frozenset({"the", "left", "right", "other", "far", "very", "each", "either", "both"})
# How much, or what kind, of what follows their "of".
_MEASURES = frozenset(
    """amount bit body bunch couple dozens handful hundreds kind kinds lot lots number pair part
    parts piece pieces plenty sort sorts type types variety""".split()
)
# Every image is one: they distinguish no two.
_IMAGES = frozenset("close-up closeup image photo photograph picture pictures shot view".split())
_VAGUE = frozenset("a all an any different large many several some the two various".split())
# Of something that another phrase names.
_PRONOMINAL = frozenset({"another", "each", "one", "ones", "other", "others", "some", "the"})


class Concept(NamedTuple):
    """A noun phrase as its caption writes it, and its characters `[start, end)` in the caption."""

    text: str
    start: int
    end: int


def concepts(parse: Parse) -> tuple[Concept, ...]:
    """Noun phrases of a parsed caption in their order, each once, whatever its case.

    Where no phrase names a thing, the whole caption is the only one, without spaces around it and
    closing marks.
    """
    found: dict[str, Concept] = {}
    for first, last in naming_phrases(parse):
        start, end = extent(parse, first, last)
        text = parse.text[start:end]
        found.setdefault(key(text), Concept(text, start, end))
    return tuple(found.values()) or (_whole(parse.text),)


class Binding(NamedTuple):
    """An attribute and the object that has it, in lower case: red, car."""

    attribute: str
    object: str


def objects(parse: Parse) -> tuple[str, ...]:
    """Last nouns of the phrases that name something to be seen, in lower case."""
    return tuple(key(parse.words[place]) for place, _ in _objects(parse))


def bindings(parse: Parse) -> tuple[Binding, ...]:
    """Adjectives and participles before the last noun of a phrase, each with that noun."""
    return tuple(
        Binding(key(parse.words[place]), key(parse.words[noun]))
        for noun, first in _objects(parse)
        for place in range(first, noun)
        if parse.upos[place] == "ADJ" or parse.tags[place] in _PARTICIPLES
    )


def relations(parse: Parse) -> tuple[str, ...]:
    """What is between an object and the next one's phrase, if a preposition or a verb is."""
    found = []
    nouns = list(_objects(parse))
    for (noun, _), (_, following) in pairwise(nouns):
        between = range(noun + 1, following)
        if any(parse.upos[place] in _RELATING for place in between):
            found.append(" ".join(key(parse.words[place]) for place in between))
    return tuple(found)


def _objects(parse: Parse) -> Iterator[tuple[int, int]]:
    """The last noun of each phrase that names something, and the phrase's first word."""
    for first, last in naming_phrases(parse):
        nouns = [place for place in range(first, last) if parse.upos[place] in NOUNS]
        if nouns:
            yield nouns[-1], first


def naming_phrases(parse: Parse) -> Iterator[Phrase]:
    """Noun phrases that name something to be seen, without possessives and marks at their edges."""
    for first, last in noun_phrases_of(parse):
        while first < last and parse.upos[first] in _EDGES:
            first += 1
        while first < last and parse.upos[last - 1] in _EDGES:
            last -= 1
        if first < last and _names_a_thing(parse, first, last):
            yield first, last


def _names_a_thing(parse: Parse, first: int, last: int) -> bool:
    words = [key(word) for word in parse.words[first:last]]
    *before, head = words
    following = key(parse.words[last]) if last < len(parse.words) else ""
    after_preposition = first > 0 and parse.upos[first - 1] == "ADP"
    if sum(map(str.isalpha, "".join(words))) < 2 or _PRONOMINAL.issuperset(words):
        return False
    if head in _PLACES and _PLACING.issuperset(before):
        return not (after_preposition or following == "of")
    if head == "close" and _ARTICLES.issuperset(before):
        return following != "up"
    vague = head in _MEASURES or head in _IMAGES
    return not (vague and following == "of" and _VAGUE.issuperset(before))


def _whole(text: str) -> Concept:
    start = len(text) - len(text.lstrip())
    end = max(len(text.rstrip(" .?!")), start)
    return Concept(text[start:end], start, end)
