"""Classify the change from a caption to its negative: swapped, replaced or added words.

It is read from the two texts alone, so it holds for hard negatives of any origin.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from compo_pipeline.core.records import Parse
from compo_pipeline.language.editing import NOUNS, Phrase, fold_case, is_separator, noun_phrases_of
from compo_pipeline.language.scene_graph import Category, scene_graph
from compo_pipeline.language.units import units

Change = Literal[
    "swapped_attributes",
    "swapped_objects",
    "replaced_attribute",
    "replaced_object",
    "replaced_relation",
    "added_attribute",
]

_INDEFINITE = frozenset({"a", "an"})
_ARTICLES = _INDEFINITE | {"the"}
_MODIFIERS = frozenset({"ADJ", "NUM"})
_PARTICIPLES = frozenset({"VBN", "VBG"})
_RELATING = frozenset({"ADP", "VERB", "ADV", "SCONJ"})
_REPLACED: dict[Category, Change] = {
    "attribute": "replaced_attribute",
    "entity": "replaced_object",
    "relation": "replaced_relation",
}


def change(caption: Parse, other: Parse) -> Change | None:
    """Kind of the only change from a caption to another text, such as `swapped_objects`, else None.

    Case, marks, "a" and "an" do not count.

    Objects are swapped where subject and object of a relation change places with their attributes:
    nouns that change places without them exchange attributes too.

    Returns:
        None where the texts are equal, where more than one thing was changed, or something that is
        no attribute, object or relation.
    """
    ours, theirs = _word_indices(caption), _word_indices(other)
    words, changed = _comparable_words(caption, ours), _comparable_words(other, theirs)
    start = _common_prefix_length(words, changed)
    end = _common_prefix_length(words[start:][::-1], changed[start:][::-1])
    words, changed = words[start : len(words) - end], changed[start : len(changed) - end]
    end = start + len(words)
    if exchanged := _exchanged_lengths(words, changed):
        first, last = exchanged
        phrases = _token_span(ours, start, start + first), _token_span(ours, end - last, end)
        if {_phrase_category(caption, phrase) for phrase in phrases} == {"attribute"}:
            return "swapped_attributes"
        return "swapped_objects" if _exchanges_objects(caption, other) else None
    if sorted(words) == sorted(changed):
        return None
    if not words:
        added = _phrase_category(other, _token_span(theirs, start, start + len(changed)))
        return "added_attribute" if added == "attribute" else None
    replaced = _phrase_category(caption, _token_span(ours, start, end))
    return _REPLACED[replaced] if replaced and changed else None


def _common_prefix_length(one: Sequence[str], other: Sequence[str]) -> int:
    """Number of equal words at the start of two texts."""
    differing = (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differing, min(len(one), len(other)))


def _exchanged_lengths(words: Sequence[str], changed: Sequence[str]) -> tuple[int, int] | None:
    """Word counts of the first and last phrase whose exchange makes one text the other, or None."""
    size = len(words)
    if size != len(changed):
        return None
    pairs = ((one, moved - one) for moved in range(2, size) for one in range(1, moved))
    for first, last in pairs:
        middle = words[first : size - last]
        if changed == (*words[size - last :], *middle, *words[:first]):
            return first, last
    return None


def _word_indices(parse: Parse) -> list[int]:
    """Indices of the tokens that are not only punctuation or spaces."""
    return [place for place, word in enumerate(parse.words) if not all(map(is_separator, word))]


def _comparable_words(parse: Parse, places: Sequence[int]) -> tuple[str, ...]:
    """Case-folded words of these token indices, with "an" as "a", for comparison of texts."""
    words = (fold_case(parse.words[place]) for place in places)
    return tuple("a" if word in _INDEFINITE else word for word in words)


def _token_span(places: Sequence[int], first: int, last: int) -> Phrase:
    """Token span [start, end) of the words of these ranks, or (0, 0) for an empty range."""
    return (places[first], places[last - 1] + 1) if first < last else (0, 0)


def _exchanges_objects(caption: Parse, other: Parse) -> bool:
    """Whether a text is the caption with subject and object of a relation exchanged.

    Each keeps its attributes.
    """
    changed = _words_without_articles(other.words)
    for unit in units(caption):
        if unit.category == "relation":
            subject, between, thing = unit.parts
            order = (
                *range(subject[0]),
                *range(*thing),
                *range(*between),
                *range(*subject),
                *range(thing[1], len(caption.words)),
            )
            if _words_without_articles(caption.words[place] for place in order) == changed:
                return True
    return False


def _words_without_articles(words: Iterable[str]) -> list[str]:
    """Case-folded words without articles and punctuation, for comparison of texts."""
    folded = (fold_case(word) for word in words if not all(map(is_separator, word)))
    return [word for word in folded if word not in _ARTICLES]


def _phrase_category(parse: Parse, phrase: Phrase) -> Category | None:
    """Category of a phrase (entity, attribute or relation), or None if no single category fits.

    By the elements of the scene graph, else by parts of speech.
    """
    start, end = phrase
    elements = scene_graph(parse).elements
    found = {one.category for one in elements if one.start < end and start < one.end}
    upos = {parse.upos[place] for place in range(start, end)}
    if not found and _is_participle_modifier(parse, phrase):
        return "attribute"
    if "relation" in found or (not found and upos & _RELATING):
        return None if "entity" in found or (not found and upos & NOUNS) else "relation"
    if upos & NOUNS and found != {"attribute"}:
        return "entity" if not upos & _RELATING else None
    return "attribute" if found or upos <= _MODIFIERS else None


def _is_participle_modifier(parse: Parse, phrase: Phrase) -> bool:
    """Whether a phrase consists of participles that precede the noun of a noun phrase."""
    start, end = phrase
    return all(parse.tags[place] in _PARTICIPLES for place in range(start, end)) and any(
        first <= start and end < last for first, last in noun_phrases_of(parse)
    )
