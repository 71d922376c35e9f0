"""What the captions of an image say, to tell whether they make a foil true."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import product

from compo_pipeline.language.editing import (
    NOUNS,
    bare,
    fold_case,
    noun_phrases_of,
    token_text,
)
from compo_pipeline.language.lexicon import load_lexicon
from compo_pipeline.language.scene_graph import Category, fine_tag, scene_graph
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
        self.parses = tuple(parses)
        words = (" ".join(map(fold_case, parse.words)) for parse in self.parses)
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

    def states(self, category: Category, firsts: Iterable[str], seconds: Iterable[str]) -> bool:
        """Whether a caption joins one of these lemmas with one of the others.

        Args:
            category: "attribute" joins attributes with nouns, "relation" prepositions with their
                objects, "entity" subjects with objects.
            firsts: lemmas.
            seconds: other lemmas.
        """
        return not self._stated[category].isdisjoint(product(firsts, seconds))

    @cached_property
    def _captions(self) -> set[str]:
        """The image's captions, case-folded and without closing punctuation."""
        return {bare(parse.text) for parse in self.parses}

    @cached_property
    def _named_lemmas(self) -> set[tuple[str, str]]:
        """Pairs (part of speech, lemma) of lemmas that may be true of what the captions mention."""
        return {
            (upos, found)
            for parse in self.parses
            for word, upos, tag in _mentions(parse)
            for found in compatible_lemmas(word, upos, tag)
        }

    @cached_property
    def _stated(self) -> dict[Category, set[tuple[str, str]]]:
        """Pairs of lemmas that the captions join, by category."""
        found: dict[Category, set[tuple[str, str]]] = {
            "attribute": set(),
            "relation": set(),
            "entity": set(),
        }
        for parse in self.parses:
            for element in scene_graph(parse).elements:
                if element.category == "attribute":
                    noun = modified_noun(parse, element.start)
                elif element.category == "relation":
                    noun = noun_of_phrase_at(parse, element.end)
                else:
                    continue
                if noun is not None:
                    word = token_text(parse, element.start, element.end)
                    own = compatible_lemmas(word, element.upos, element.tag)
                    found[element.category].update(product(own, noun_lemmas(parse, noun)))
            for unit in units(parse):
                if unit.category == "relation":
                    subject, _, other = (noun_lemmas(parse, end - 1) for _, end in unit.parts)
                    found["entity"].update(product(subject, other))
        return found


def noun_lemmas(parse: Parse, place: int) -> frozenset[str]:
    """Lemmas that may be true of the same thing as the noun at a token index, such as synonyms."""
    return compatible_lemmas(parse.words[place], "NOUN", fine_tag(parse, place))


def _mentions(parse: Parse) -> Iterator[tuple[str, str, str]]:
    """All words with part of speech and fine tag, and the compounds that end noun phrases."""
    for place, (word, upos) in enumerate(zip(parse.words, parse.upos, strict=True)):
        yield word, "NOUN" if upos in NOUNS else upos, fine_tag(parse, place)
    for start, end in noun_phrases_of(parse):
        for first in range(start, end - 1):
            yield token_text(parse, first, end), "NOUN", fine_tag(parse, end - 1)
