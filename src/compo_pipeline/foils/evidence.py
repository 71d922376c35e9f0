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


def compatible_lemmas(word: str, upos: str, tag: str) -> frozenset[str]:
    """Lemmas that may be true of the same thing as a word, such as its own lemma and synonyms."""
    lemma = load_lexicon().find_lemma(fold_case(word), upos, tag)
    return load_lexicon().compatible(lemma) if lemma else frozenset({fold_case(word)})


def lemma_name(word: str, upos: str, tag: str) -> str:
    """Lemma of a word form; the case-folded word itself if the lexicon lacks it."""
    lemma = load_lexicon().find_lemma(fold_case(word), upos, tag)
    return lemma.name if lemma else fold_case(word)


def modified_noun(parse: Parse, place: int) -> int | None:
    """Token index of the noun that an attribute modifies, in its phrase or before it; or None.

    One before it is the last of the preceding phrase ("the ball is red").
    """
    before = None
    for start, end in noun_phrases_of(parse):
        if start <= place < end:
            return end - 1
        if end <= place:
            before = end - 1
    return before


def noun_of_phrase_at(parse: Parse, place: int) -> int | None:
    """Token index of the noun whose noun phrase starts at a token; None if none starts there."""
    return next((end - 1 for start, end in noun_phrases_of(parse) if start == place), None)


class Evidence:
    """Facts that the captions of one image state, to find out whether a foil is true of it.

    Args:
        parses: of all its captions.
    """

    def __init__(self, parses: Iterable[Parse]) -> None:
        self._parses = tuple(parses)
        words = (" ".join(map(fold_case, parse.words)) for parse in self._parses)
        self._text = f" {' . '.join(words)} "

    def contains(self, word: str) -> bool:
        """Whether a caption of the image contains a word or an expression of several words."""
        return f" {fold_case(word)} " in self._text

    def may_name(self, word: str, upos: str, tag: str) -> bool:
        """Whether the captions name a thing that this word may name as well."""
        return (upos, lemma_name(word, upos, tag)) in self._named_lemmas

    def is_caption(self, text: str) -> bool:
        """Whether a text equals a caption of the image but for case and closing punctuation."""
        return bare(text) in self._captions

    def states_attribute(self, attribute: Iterable[str], noun: Iterable[str]) -> bool:
        """Whether a caption gives one of these attributes to one of these nouns."""
        return not self._attribute_noun_pairs.isdisjoint(
            (one, other) for one in attribute for other in noun
        )

    def states_preposition(self, relation: Iterable[str], noun: Iterable[str]) -> bool:
        """Whether a caption has one of these prepositions before one of these nouns."""
        return not self._relation_object_pairs.isdisjoint(
            (one, other) for one in relation for other in noun
        )

    def states_relation(self, subject: Iterable[str], other: Iterable[str]) -> bool:
        """Whether a caption has a relation with one of these subjects and one of these objects."""
        return not self._subject_object_pairs.isdisjoint(
            (one, two) for one in subject for two in other
        )

    @cached_property
    def _captions(self) -> set[str]:
        """The image's captions, case-folded and without closing punctuation."""
        return {bare(parse.text) for parse in self._parses}

    @cached_property
    def _named_lemmas(self) -> set[tuple[str, str]]:
        """Pairs (part of speech, lemma) of lemmas that may be true of what the captions mention."""
        return {
            (upos, found)
            for parse in self._parses
            for word, upos, tag in _mentions(parse)
            for found in compatible_lemmas(word, upos, tag)
        }

    @cached_property
    def _attribute_noun_pairs(self) -> set[tuple[str, str]]:
        """Pairs (attribute lemma, noun lemma) that the captions state."""
        found = set[tuple[str, str]]()
        for parse, element in self._elements("attribute"):
            noun = modified_noun(parse, element.start)
            if noun is not None:
                attributes = compatible_lemmas(
                    token_text(parse, *_span(element)), element.upos, element.tag
                )
                found |= {(one, two) for one in attributes for two in noun_lemmas(parse, noun)}
        return found

    @cached_property
    def _relation_object_pairs(self) -> set[tuple[str, str]]:
        """Pairs (preposition or verb lemma, object lemma) that the captions state."""
        found = set[tuple[str, str]]()
        for parse, element in self._elements("relation"):
            noun = noun_of_phrase_at(parse, element.end)
            if noun is not None:
                relations = compatible_lemmas(
                    token_text(parse, *_span(element)), element.upos, element.tag
                )
                found |= {(one, two) for one in relations for two in noun_lemmas(parse, noun)}
        return found

    @cached_property
    def _subject_object_pairs(self) -> set[tuple[str, str]]:
        """Pairs (subject lemma, object lemma) of the relations that the captions state."""
        found = set[tuple[str, str]]()
        for parse in self._parses:
            for unit in units(parse):
                if unit.category == "relation":
                    subject, _, other = (noun_lemmas(parse, end - 1) for _, end in unit.parts)
                    found |= {(one, two) for one in subject for two in other}
        return found

    def _elements(self, category: str) -> Iterator[tuple[Parse, Element]]:
        """Elements of a category in the captions' scene graphs, each with its caption's parse."""
        for parse in self._parses:
            for element in scene_graph(parse).elements:
                if element.category == category:
                    yield parse, element


def noun_lemmas(parse: Parse, place: int) -> frozenset[str]:
    """Lemmas that may be true of the same thing as the noun at a token index, such as synonyms."""
    return compatible_lemmas(parse.words[place], "NOUN", fine_tag(parse, place))


def _span(element: Element) -> Phrase:
    """Token span [start, end) of a scene-graph element."""
    return element.start, element.end


def _mentions(parse: Parse) -> Iterator[tuple[str, str, str]]:
    """All words with part of speech and fine tag, and the compounds that end noun phrases."""
    for place, (word, upos) in enumerate(zip(parse.words, parse.upos, strict=True)):
        yield word, "NOUN" if upos in NOUNS else upos, fine_tag(parse, place)
    for start, end in noun_phrases_of(parse):
        for first in range(start, end - 1):
            yield token_text(parse, first, end), "NOUN", fine_tag(parse, end - 1)
