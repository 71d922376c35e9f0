"""What the captions of an image say, to tell whether they make a foil true."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property

from compo_pipeline.language.editing import (
    NOUNS,
    Phrase,
    bare,
    fold_case,
    noun_phrases_of,
    token_text,
)
from compo_pipeline.language.lexicon import load_lexicon
from compo_pipeline.language.scene_graph import Element, fine_tag, scene_graph
from compo_pipeline.language.units import units
from compo_pipeline.storage.records import Parse


def names(word: str, upos: str, tag: str) -> frozenset[str]:
    """Lemmas that may be true of what a word names: its own, its synonyms and compatible ones."""
    lemma = load_lexicon().find_lemma(fold_case(word), upos, tag)
    return load_lexicon().compatible(lemma) if lemma else frozenset({fold_case(word)})


def name(word: str, upos: str, tag: str) -> str:
    """The lemma of a word form; a word that the lexicon does not have is its own."""
    lemma = load_lexicon().find_lemma(fold_case(word), upos, tag)
    return lemma.name if lemma else fold_case(word)


def noun_of(parse: Parse, place: int) -> int | None:
    """Place of the noun that an attribute belongs to: that of its phrase, else the last before it
    ("the ball is red").
    """
    before = None
    for start, end in noun_phrases_of(parse):
        if start <= place < end:
            return end - 1
        if end <= place:
            before = end - 1
    return before


def object_of(parse: Parse, place: int) -> int | None:
    """Place of the noun whose phrase starts at a place."""
    return next((end - 1 for start, end in noun_phrases_of(parse) if start == place), None)


class Evidence:
    """What the captions of an image say.

    Args:
        parses: of all its captions.
    """

    def __init__(self, parses: Iterable[Parse]) -> None:
        self._parses = tuple(parses)
        words = (" ".join(map(fold_case, parse.words)) for parse in self._parses)
        self._text = f" {' . '.join(words)} "

    def says(self, word: str) -> bool:
        """Whether a caption has a word, or several in this order."""
        return f" {fold_case(word)} " in self._text

    def names(self, word: str, upos: str, tag: str) -> bool:
        """Whether a word of the captions may be true of the same as this one."""
        return (upos, name(word, upos, tag)) in self._named_lemmas

    def is_caption(self, text: str) -> bool:
        """Whether a text is one of the captions but for case and closing punctuation."""
        return bare(text) in self._captions

    def binds(self, attribute: Iterable[str], noun: Iterable[str]) -> bool:
        """Whether a caption gives one of these attributes to one of these nouns."""
        return not self._attribute_noun_pairs.isdisjoint(
            (one, other) for one in attribute for other in noun
        )

    def relates(self, relation: Iterable[str], noun: Iterable[str]) -> bool:
        """Whether a caption has one of these prepositions before one of these nouns."""
        return not self._relation_object_pairs.isdisjoint(
            (one, other) for one in relation for other in noun
        )

    def states(self, subject: Iterable[str], other: Iterable[str]) -> bool:
        """Whether a caption relates one of these nouns, as subject, to one of the others."""
        return not self._subject_object_pairs.isdisjoint(
            (one, two) for one in subject for two in other
        )

    @cached_property
    def _captions(self) -> set[str]:
        """The captions of the image, without case and closing marks."""
        return {bare(parse.text) for parse in self._parses}

    @cached_property
    def _named_lemmas(self) -> set[tuple[str, str]]:
        """Part of speech and lemma of all that the captions name."""
        return {
            (upos, found)
            for parse in self._parses
            for word, upos, tag in _mentions(parse)
            for found in names(word, upos, tag)
        }

    @cached_property
    def _attribute_noun_pairs(self) -> set[tuple[str, str]]:
        """Pairs (attribute, noun) that the captions state."""
        found = set[tuple[str, str]]()
        for parse, element in self._elements("attribute"):
            noun = noun_of(parse, element.start)
            if noun is not None:
                attributes = names(token_text(parse, *_span(element)), element.upos, element.tag)
                found |= {(one, two) for one in attributes for two in noun_names(parse, noun)}
        return found

    @cached_property
    def _relation_object_pairs(self) -> set[tuple[str, str]]:
        """Pairs (relation word, object) that the captions state."""
        found = set[tuple[str, str]]()
        for parse, element in self._elements("relation"):
            noun = object_of(parse, element.end)
            if noun is not None:
                relations = names(token_text(parse, *_span(element)), element.upos, element.tag)
                found |= {(one, two) for one in relations for two in noun_names(parse, noun)}
        return found

    @cached_property
    def _subject_object_pairs(self) -> set[tuple[str, str]]:
        """Pairs (subject, object) of the relations that the captions state."""
        found = set[tuple[str, str]]()
        for parse in self._parses:
            for unit in units(parse):
                if unit.category == "relation":
                    subject, _, other = (noun_names(parse, end - 1) for _, end in unit.parts)
                    found |= {(one, two) for one in subject for two in other}
        return found

    def _elements(self, category: str) -> Iterator[tuple[Parse, Element]]:
        """Elements of a category in the captions' scene graphs, with their parse."""
        for parse in self._parses:
            for element in scene_graph(parse).elements:
                if element.category == category:
                    yield parse, element


def noun_names(parse: Parse, place: int) -> frozenset[str]:
    """Lemmas that may be true of what the noun at a place names."""
    return names(parse.words[place], "NOUN", fine_tag(parse, place))


def _span(element: Element) -> Phrase:
    """First word of an element, and the word after its last."""
    return element.start, element.end


def _mentions(parse: Parse) -> Iterator[tuple[str, str, str]]:
    """Words with part of speech and fine tag, and the compounds that end noun phrases."""
    for place, (word, upos) in enumerate(zip(parse.words, parse.upos, strict=True)):
        yield word, "NOUN" if upos in NOUNS else upos, fine_tag(parse, place)
    for start, end in noun_phrases_of(parse):
        for first in range(start, end - 1):
            yield token_text(parse, first, end), "NOUN", fine_tag(parse, end - 1)
