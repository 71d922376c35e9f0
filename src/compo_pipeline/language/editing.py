"""Edits of parsed captions: movable units, spelling at the new place, the new text.

Words are compared without case, since models read captions in lower case.
"""

from __future__ import annotations

import random
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from compo_pipeline.core.records import Parse

Phrase = tuple[int, int]  # half-open, in tokens of a parse
NOUNS = frozenset({"NOUN", "PROPN"})
_ARTICLES = frozenset({"a", "an"})
_VOWELS = "aeiou"
# Words that sound unlike they are written: with a vowel first, or without one.
_CONSONANT_SOUND = re.compile(r"^(u[bcfkst][aeiou]|u[bkst]$|eu|ewe|one\b|once\b|ouija)")
_VOWEL_SOUND = re.compile(r"^(hour|heir|honest|honou?r|suv|8|1[18]\b|[fhlmnrsx]-|[fhlmnrsx]$)")
# "uniform" and "union", but "uninteresting" and "unidentified": only these begin with "you".
_UNI = re.compile(r"^uni(?!n|d|m[ap])")


@dataclass(frozen=True, slots=True)
class Generated:
    """A hard negative or paraphrase made from a parsed caption, with the edit that made it.

    Attributes:
        text: the new text.
        generator: the rule that made it.
        category: part of speech, kind of phrase or kind of relation to which the rule was applied.
        words: words that were removed or moved, as in the source. For a replacement, the old words
            and then the new ones.
    """

    text: str
    generator: str
    category: str
    words: tuple[str, ...]


# Equal parses and equal states of the generator of random numbers give equal texts; None where
# the rule finds nothing to work on.
Generator = Callable[[Parse, random.Random], Generated | None]


class Edit(NamedTuple):
    """Replacement text for the tokens `[start, end)`."""

    start: int
    end: int
    text: str


def noun_phrases_of(parse: Parse) -> list[Phrase]:
    """Token spans [start, end) of the noun phrases of a parse, in text order."""
    return list(zip(parse.noun_phrases[::2], parse.noun_phrases[1::2], strict=True))


def upos_at(parse: Parse, place: int) -> str:
    """Universal part of speech of a token, empty for an index outside the parse."""
    return parse.upos[place] if 0 <= place < len(parse.upos) else ""


def fold_case(text: str) -> str:
    """Case-folded text, for comparison of words."""
    return text.casefold()


@lru_cache(maxsize=4096)
def is_separator(character: str) -> bool:
    """Whether a character is punctuation, a space, or empty (behind a text's end)."""
    return not character or unicodedata.category(character)[0] in "PZ" or character.isspace()


def extent(parse: Parse, start: int, end: int) -> tuple[int, int]:
    """Character span [first, last) of the tokens `[start, end)` in the text of a parse."""
    return parse.offsets[start], parse.offsets[end - 1] + len(parse.words[end - 1])


def token_text(parse: Parse, start: int, end: int) -> str:
    """Text of the tokens `[start, end)` of a parse, with the spaces between them."""
    first, last = extent(parse, start, end)
    return parse.text[first:last]


def is_movable(parse: Parse, start: int, end: int) -> bool:
    """Whether the tokens `[start, end)` are whole words, so that they can be moved in the text.

    They are more than punctuation, and no pieces of a longer run of characters.

    "do" and "n't" are two tokens of one written word and stay together; "cat" in "cat's" and
    "red" in "red-haired" can move.
    """
    first, last = extent(parse, start, end)
    text = parse.text
    return (
        is_separator(text[first - 1 : first] if first else "")
        and is_separator(text[last : last + 1])
        and not all(map(is_separator, text[first:last]))
    )


def recapitalise(to: Parse, place: int, text: str, source: Parse, taken: int) -> str:
    """Text with the case of its first letter adapted to its new position in a sentence.

    A capital that opens the source's sentence stays behind.

    Args:
        to: the sentence that gets the text.
        place: the token that it takes the place of.
        text: the text, as its own sentence has it.
        source: sentence whose capitals are kept.
        taken: the text's first token there.
    """
    word = source.words[taken]
    borrowed = source.upos[taken] != "PROPN" and word != "I" and word[1:] == word[1:].lower()
    if borrowed and _opens_sentence(source, taken):
        text = _replace_first_letter(text, text[0].lower())
    if _opens_sentence(to, place) and to.words[place][0].isupper():
        text = _replace_first_letter(text, text[0].upper())
    return text


def apply_edits(parse: Parse, edits: Sequence[Edit]) -> str:
    """Text of a caption after token edits, which are in text order and do not overlap."""
    pieces: list[str] = []
    copied = 0
    for start, end, text in edits:
        first, last = extent(parse, start, end)
        pieces += [parse.text[copied:first], text]
        copied = last
    return "".join([*pieces, parse.text[copied:]])


def exchange_edits(parse: Parse, one: Phrase, other: Phrase) -> list[Edit]:
    """The two edits that exchange two phrases of a caption.

    The earlier one is given first.
    """
    return [
        Edit(*place, recapitalise(parse, place[0], token_text(parse, *taken), parse, taken[0]))
        for place, taken in ((one, other), (other, one))
    ]


def replacement_edits(parse: Parse, phrase: Phrase, word: str) -> list[Edit]:
    """Edits that replace a phrase by a lower-case word, and adapt capitals and the article."""
    start, end = phrase
    new = copy_capitals(word, token_text(parse, start, end))
    edits = [Edit(start, end, new)]
    before = parse.words[start - 1] if start else ""
    if before.lower() in _ARTICLES and before.lower() != indefinite_article(new):
        # "A" is the capital of "a" and of "an" alike: it depends on the next word.
        shouted = new.isupper() and len(new) > 1
        model = before if len(before) > 1 or not shouted else "AN"
        edits.insert(0, Edit(start - 1, start, copy_capitals(indefinite_article(new), model)))
    return edits


def _opens_sentence(parse: Parse, place: int) -> bool:
    """Whether only punctuation and spaces precede a token in its sentence."""
    return all(map(is_separator, parse.text[: parse.offsets[place]]))


def _replace_first_letter(word: str, letter: str) -> str:
    """The word with another first letter if that changes only its case, else the word itself."""
    changed = letter + word[1:]
    return changed if changed.lower() == word.lower() else word


def indefinite_article(following: str) -> str:
    """`a` or `an`, by the sound of the word that follows."""
    word = following.lower()
    if _CONSONANT_SOUND.match(word) or _UNI.match(word):
        return "a"
    return "an" if _VOWEL_SOUND.match(word) or word[:1] in _VOWELS else "a"


def copy_capitals(word: str, model: str) -> str:
    """A lower-case word with the capitals of a model word: none, the first letter, or all."""
    letters = [letter for letter in model if letter.isalpha()]
    if not letters or not letters[0].isupper():
        return word
    if len(letters) > 1 and all(letter.isupper() for letter in letters):
        return word.upper()
    return word[:1].upper() + word[1:]
