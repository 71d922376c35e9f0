"""Concepts of a caption: the noun phrases that a model is to find in its image.

Source: "C2LIP", Sec. 3: noun phrases from a dependency parse. The authors' published code asks a
language model for them instead, and leaves out generic places, repeated phrases and those of one
character; a caption without any is its own. Phrases that name nothing to be seen are left out here
too (docs/explanation/concepts.md): equal ones are in captions of unrelated images, each of which
would be a negative of the other's phrase.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from compo_pipeline.core.records import Parse
from compo_pipeline.language.editing import NOUNS, Phrase, extent, fold_case, noun_phrases_of

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
    """A noun phrase of a caption, as written there, and its character span `[start, end)`."""

    text: str
    start: int
    end: int


def concepts(parse: Parse) -> tuple[Concept, ...]:
    """The noun phrases of a caption that name something visible, each once.

    Where no phrase names a thing, the whole caption is the only one, without spaces around it and
    closing marks.
    """
    found: dict[str, Concept] = {}
    for first, last in naming_phrases(parse):
        start, end = extent(parse, first, last)
        text = parse.text[start:end]
        found.setdefault(fold_case(text), Concept(text, start, end))
    return tuple(found.values()) or (_whole_caption(parse.text),)


def locate_phrases(caption: str, phrases: Iterable[str]) -> tuple[Concept, ...]:
    """Given phrases as concepts, with their spans in the caption, or (0, 0) for absent phrases.

    Without phrases the whole caption is the only concept, as in C2LIP's code.
    """
    found = []
    for phrase in phrases:
        place = re.search(re.escape(phrase), caption, re.IGNORECASE)
        found.append(Concept(phrase, *(place.span() if place else (0, 0))))
    return tuple(found) or (Concept(caption, 0, len(caption)),)


class Binding(NamedTuple):
    """An attribute and the object that has it, in lower case: red, car."""

    attribute: str
    object: str


def objects(parse: Parse) -> tuple[str, ...]:
    """The nouns of a caption that name something visible, in lower case."""
    return tuple(fold_case(parse.words[place]) for place, _ in _object_nouns(parse))


def bindings(parse: Parse) -> tuple[Binding, ...]:
    """Attribute-object pairs of a caption: an adjective or participle, and the noun after it."""
    return tuple(
        Binding(fold_case(parse.words[place]), fold_case(parse.words[noun]))
        for noun, first in _object_nouns(parse)
        for place in range(first, noun)
        if parse.upos[place] == "ADJ" or parse.tags[place] in _PARTICIPLES
    )


def relations(parse: Parse) -> tuple[str, ...]:
    """Texts between neighbouring objects of a caption that contain a preposition or a verb."""
    found = []
    nouns = list(_object_nouns(parse))
    for (noun, _), (_, following) in pairwise(nouns):
        between = range(noun + 1, following)
        if any(parse.upos[place] in _RELATING for place in between):
            found.append(" ".join(fold_case(parse.words[place]) for place in between))
    return tuple(found)


def _object_nouns(parse: Parse) -> Iterator[tuple[int, int]]:
    """Token indices of the last noun and the first word of each phrase for a visible thing."""
    for first, last in naming_phrases(parse):
        nouns = [place for place in range(first, last) if parse.upos[place] in NOUNS]
        if nouns:
            yield nouns[-1], first


def naming_phrases(parse: Parse) -> Iterator[Phrase]:
    """Token spans of noun phrases that name something visible, without punctuation at the ends."""
    for first, last in noun_phrases_of(parse):
        while first < last and parse.upos[first] in _EDGES:
            first += 1
        while first < last and parse.upos[last - 1] in _EDGES:
            last -= 1
        if first < last and _names_a_thing(parse, first, last):
            yield first, last


def _names_a_thing(parse: Parse, first: int, last: int) -> bool:
    """Whether a noun phrase names something visible, unlike "left side", "kind of", "photo of"."""
    words = [fold_case(word) for word in parse.words[first:last]]
    *before, head = words
    following = fold_case(parse.words[last]) if last < len(parse.words) else ""
    after_preposition = first > 0 and parse.upos[first - 1] == "ADP"
    if sum(map(str.isalpha, "".join(words))) < 2 or _PRONOMINAL.issuperset(words):
        return False
    if head in _PLACES and _PLACING.issuperset(before):
        return not (after_preposition or following == "of")
    if head == "close" and _ARTICLES.issuperset(before):
        return following != "up"
    vague = head in _MEASURES or head in _IMAGES
    return not (vague and following == "of" and _VAGUE.issuperset(before))


def _whole_caption(text: str) -> Concept:
    """The whole caption as a concept, without spaces around it and closing punctuation."""
    start = len(text) - len(text.lstrip())
    end = max(len(text.rstrip(" .?!")), start)
    return Concept(text[start:end], start, end)
