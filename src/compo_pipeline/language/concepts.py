"""Concepts of a caption: the noun phrases that a model is to find in its image.

Source: "C2LIP", Sec. 3: noun phrases from a dependency parse. The authors' published code asks a
language model for them instead, and leaves out generic places, repeated phrases and those of one
character; a caption without any is its own. Phrases that name nothing to be seen are left out here
too (docs/concepts.md): equal ones are in captions of unrelated images, each of which would be
a negative of the other's phrase.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from compo_pipeline.language.editing import Span, extent, key, noun_phrases_of
from compo_pipeline.records import Parse

# Not part of a phrase when they are at its edge: "'s reflection".
_EDGES = frozenset({"PART", "PUNCT"})
_ARTICLES = frozenset({"a", "an", "the"})
# Where something is, with these words alone before them: "in front", "on the left side of".
_PLACES = frozenset(
    {"back", "background", "bottom", "center", "centre", "distance", "foreground", "front", "half"}
    | {"left", "middle", "right", "side", "sides", "top"}
)
_PLACING = frozenset({"the", "left", "right", "other", "far", "very", "each", "either", "both"})
# How much, or what kind, of what follows their "of".
_MEASURES = frozenset(
    {"amount", "bit", "body", "bunch", "couple", "dozens", "handful", "hundreds", "kind", "kinds"}
    | {"lot", "lots", "number", "pair", "part", "parts", "piece", "pieces", "plenty", "sort"}
    | {"sorts", "type", "types", "variety"}
)
# Every image is one: they distinguish no two.
_IMAGES = frozenset(
    {"close-up", "closeup", "image", "photo", "photograph", "picture", "pictures", "shot", "view"}
)
_VAGUE = frozenset(
    {"a", "all", "an", "any", "different", "large", "many", "several", "some", "the", "two"}
    | {"various"}
)
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
    for start, end in _spans(parse):
        text = parse.text[start:end]
        found.setdefault(key(text), Concept(text, start, end))
    return tuple(found.values()) or (_whole(parse.text),)


def _spans(parse: Parse) -> Iterator[Span]:
    for first, last in noun_phrases_of(parse):
        while first < last and parse.upos[first] in _EDGES:
            first += 1
        while first < last and parse.upos[last - 1] in _EDGES:
            last -= 1
        if first < last and _names_a_thing(parse, first, last):
            yield extent(parse, first, last)


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
