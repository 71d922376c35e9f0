"""What the words of a text are about, without a parse: answers of a language model have none.

A word may have several readings ("orange"); two words are taken for the same where one pair of
their readings is. Readings, synonyms and what excludes what are those of the caption lexicon.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import NamedTuple

from compo_pipeline.language.lexicon import Lemma, load_lexicon

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*|&")
_OWNER = re.compile(r"['’]s?$")
# Words that change a text without changing what it says of an image.
_EMPTY = frozenset(
    {"a", "an", "the", "is", "are", "was", "were", "be", "been", "being", "am", "s"}
    | {"that", "which", "who", "there", "here", "it", "its", "they", "their", "this", "these"}
    | {"those", "of", "to", "as", "also", "too", "some", "do", "does", "did"}
)
_JOINS = frozenset({"and", "or", "&"})
_DENIALS = frozenset(
    {"no", "not", "without", "never", "none", "nobody", "nothing", "cannot", "neither", "nor"}
)
_PRONOUNS = {
    **dict.fromkeys(("he", "him", "his", "himself"), "he"),
    **dict.fromkeys(("she", "her", "hers", "herself"), "she"),
}
_PRONOUN = "PRON"
_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_THINGS = frozenset({"NOUN", "ADJ", "NUM"})
_LINKS = frozenset({"VERB", "ADP"})


class Reading(NamedTuple):
    """A lemma that a form may belong to.

    Attributes:
        lemma: its name.
        upos: its part of speech.
        many: whether the form is a plural noun's.
        placed: whether the lexicon says more of it than that it exists.
    """

    lemma: str
    upos: str
    many: bool
    placed: bool


@dataclass(frozen=True, slots=True)
class Content:
    """A word, or an expression that the lexicon knows as one ("fire hydrant", "next to").

    Attributes:
        word: as it is compared.
        readings: nothing for words that are not in the lexicon.
        denies: "no", "without" and the like.
        joins: "and", "or".
    """

    word: str
    readings: frozenset[Reading] = frozenset()
    denies: bool = False
    joins: bool = False

    @property
    def known(self) -> bool:
        """Whether there is anything to compare it by."""
        return self.denies or any(one.placed for one in self.readings)

    @property
    def thing(self) -> bool:
        """Whether it names a thing, an attribute or a number in any case; unknown words may."""
        return not self.denies and all(one.upos in _THINGS for one in self.readings)

    @property
    def links(self) -> bool:
        """Whether it can be nothing but a verb or a preposition."""
        return bool(self.readings) and all(one.upos in _LINKS for one in self.readings)

    def may_be(self, upos: str) -> bool:
        """Whether a reading has this part of speech."""
        return any(one.upos == upos for one in self.readings)


@lru_cache(maxsize=4096)
def contents(text: str) -> tuple[Content, ...]:
    """The words that say something, in their order, "and" and "or" among them."""
    index = _index()
    words = [_OWNER.sub("", word) or word for word in _WORD.findall(text.casefold())]
    found, place = [], 0
    while place < len(words):
        for length in range(min(index.longest.get(words[place], 1), len(words) - place), 0, -1):
            word = " ".join(words[place : place + length])
            if length == 1 or word in index.readings:
                break
        place += length
        if word not in _EMPTY:
            found.append(_content(word))
    return tuple(found)


def _content(word: str) -> Content:
    if word in _JOINS:
        return Content("and" if word == "&" else word, joins=True)
    if word in _DENIALS or word.endswith(("n't", "n’t")):
        return Content("not", denies=True)
    if word in _PRONOUNS:
        return Content(
            _PRONOUNS[word], frozenset({Reading(_PRONOUNS[word], _PRONOUN, False, True)})
        )
    if word.isdecimal() and int(word) < len(_DIGITS):
        word = _DIGITS[int(word)]
    return Content(word, _index().readings.get(word, frozenset()))


class _Index(NamedTuple):
    """Readings by form, and by its first word how many words the longest form has."""

    readings: dict[str, frozenset[Reading]]
    longest: dict[str, int]


@cache
def _index() -> _Index:
    readings: dict[str, set[Reading]] = defaultdict(set)
    longest: dict[str, int] = {}
    for lemma in load_lexicon().lemmas.values():
        placed = bool(lemma.groups or lemma.opposites)
        for tag, form in lemma.forms.items():
            words = form.replace("-", " ").split()
            if _JOINS.intersection(words):
                continue  # "black and white" is "white and black"
            readings[" ".join(words)].add(Reading(lemma.name, lemma.upos, tag == "NNS", placed))
            longest[words[0]] = max(longest.get(words[0], 1), len(words))
    return _Index({form: frozenset(found) for form, found in readings.items()}, longest)


def same(one: Content, other: Content) -> bool:
    """Whether two words mean the same: equal, forms of one verb, or synonyms."""
    if one.word == other.word:
        return True
    pairs = _pairs(one, other)
    if any(a.lemma == b.lemma and a.many != b.many for a, b in pairs):
        return False  # "rides" may be a verb, but behind "a ride" it is not
    return any(
        a.lemma == b.lemma or (a.upos != _PRONOUN and b.lemma in load_lexicon().synonyms(_lemma(a)))
        for a, b in pairs
        if a.many == b.many
    )


def agree(one: Content, other: Content) -> bool:
    """Whether two words mean the same or may be true of the same thing ("dog", "puppy")."""
    return same(one, other) or any(
        a.lemma != b.lemma and b.lemma in load_lexicon().compatible(_lemma(a))
        for a, b in _pairs(one, other)
        if a.upos != _PRONOUN and a.many == b.many
    )


def differ(one: Content, other: Content) -> bool:
    """Whether two words are known to name different things, attributes or numbers."""
    return not agree(one, other) and any(
        a.upos in _THINGS and a.placed and b.placed for a, b in _pairs(one, other)
    )


def exclude(one: Content, other: Content) -> bool:
    """Whether the lexicon says that what one word is true of, the other is not."""
    return not agree(one, other) and any(
        _exclude(a, b) or _exclude(b, a) for a, b in _pairs(one, other)
    )


def _exclude(a: Reading, b: Reading) -> bool:
    if a.upos == _PRONOUN:
        return a.lemma != b.lemma
    lexicon = load_lexicon()
    one, other = _lemma(a), _lemma(b)
    if b.lemma in lexicon.compatible(one):
        return a.many != b.many
    opposites = {opposite.lemma for opposite in one.opposites}
    return b.lemma in opposites or bool(set(one.groups) & set(other.groups))


def _pairs(one: Content, other: Content) -> list[tuple[Reading, Reading]]:
    return [(a, b) for a in one.readings for b in other.readings if a.upos == b.upos]


def _lemma(reading: Reading) -> Lemma:
    return load_lexicon().lemmas[reading.lemma, reading.upos]
