"""Whether an edited caption means the same as its caption: negatives must not, positives must.

Texts are compared by their words in order, without parses: answers of language models have none. A
word may have several readings ("orange"); two words are taken for the same where one pair of their
readings is. Readings, synonyms and exclusions are those of the caption lexicon; words that it does
not list get the benefit of the doubt, once each.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import chain
from typing import NamedTuple

from compo_pipeline.language.clauses import turned_relations, turned_voices
from compo_pipeline.language.editing import bare, edited
from compo_pipeline.language.lexicon import Lemma, load_lexicon
from compo_pipeline.language.scene_graph import PRONOUNS
from compo_pipeline.records import Parse

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*|&")
_OWNER = re.compile(r"['’]s?$")
# Words that change a text without changing what it says of an image.
_EMPTY = frozenset(
    """a an the is are was were be been being am s that which who there here it its they their this
    these those of to as also too some do does did""".split()
)
_JOINS = frozenset({"and", "or", "&"})
_DENIALS = frozenset("no not without never none nobody nothing cannot neither nor".split())
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
    if pronoun := PRONOUNS.get(word):
        return Content(pronoun, frozenset({Reading(pronoun, _PRONOUN, False, True)}))
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


_Words = Sequence[Content]
_Alike = Callable[[Content, Content], bool]


def still_true(caption: Parse, text: str) -> str:
    """Why a text is no negative of a caption; empty where nothing speaks against it."""
    if _turned(caption, text) or _reordered(contents(caption.text), contents(text)):
        return "says the same as the caption in another order"
    ours, theirs = _plain(caption.text), _plain(text)
    left, new, _ = _matched(ours, theirs, same)
    # What may be true of one thing ("beach", "ocean") is not true of each other's places.
    alike = agree if left or new else same
    if _denials(ours) == _denials(theirs) and _follows(theirs, ours, alike):
        less = len(theirs) < len(ours)
        return "only leaves words out" if less else "says the same as the caption"
    return ""


def kept_share(caption: str, text: str) -> float:
    """The share of a caption's words that a text contains, or a synonym of them, in [0, 1]; all,
    where a single one does not.
    """
    ours = _plain(caption)
    left, _, _ = _matched(ours, _plain(text), same)
    return 1 - len(left) / len(ours) if len(left) > 1 else 1.0


def altered(caption: Parse, text: str) -> str:
    """Why a text does not say what a caption says; empty where nothing speaks against it."""
    if _turned(caption, text):
        return ""
    ours, theirs = _plain(caption.text), _plain(text)
    if _denials(ours) != _denials(theirs):
        return "denies what the caption says, or the other way round"
    left, new, places = _matched(ours, theirs, same)
    moved = _moved(left, new, places)
    if moved and not _reordered(contents(caption.text), contents(text)):
        return moved
    left, new, _ = _matched(left, new, agree)
    return _replaced(left, new)


def _turned(caption: Parse, text: str) -> bool:
    """Whether a rule turns the caption round into this text."""
    clauses = chain(turned_voices(caption), turned_relations(caption))
    return any(bare(edited(caption, one.edits)[0]) == bare(text) for one in clauses)


def _plain(text: str) -> list[Content]:
    return [word for word in contents(text) if not word.joins]


def _denials(words: _Words) -> int:
    return sum(word.denies for word in words)


def _follows(theirs: _Words, ours: _Words, alike: _Alike) -> bool:
    """Whether all these words are like some of ours, in our order."""
    rest = iter(ours)
    return all(any(alike(word, one) for one in rest) for word in theirs)


def _matched(
    ours: _Words, theirs: _Words, alike: _Alike
) -> tuple[list[Content], list[Content], list[int]]:
    """Our words that found no partner, theirs that found none, and the partners' places among
    theirs, in our order.
    """
    left, places = [], []
    free = dict(enumerate(theirs))
    for word in ours:
        place = next((at for at, one in free.items() if alike(word, one)), None)
        if place is None:
            left.append(word)
        else:
            places.append(place)
            del free[place]
    return left, list(free.values()), places


def _moved(left: _Words, new: _Words, places: list[int]) -> str:
    """Why the order of the words that stayed speaks against a text: another order wants a passive
    ("by") in one of the two, and a passive another order.
    """
    by = any(word.word == "by" for word in left) != any(word.word == "by" for word in new)
    if places != sorted(places):
        return "" if by else "the same words in another order may mean another thing"
    prepositions = [sum(word.may_be("ADP") for word in words) for words in (left, new)]
    return "turns round who does what" if by and 0 in prepositions else ""


def _replaced(left: list[Content], new: list[Content]) -> str:
    """Why the words that have no partner speak against a text."""
    for word in new:
        if other := next((one for one in left if exclude(one, word) or differ(one, word)), None):
            return f"says '{word.word}' in place of '{other.word}'"
    gone = [word for word in left if word.thing]
    added = [word for word in new if word.thing]
    if len(added) > len(gone):
        return f"adds '{added[-1].word}'"
    if len(gone) > len(added):
        return f"leaves out '{gone[-1].word}'"
    # A known word may have given way to an unknown one, never to another known one.
    known = [[word for word in words if word.known] for words in (gone, added)]
    if len(known[0]) + len(known[1]) > len(gone):
        return f"says '{known[1][0].word}' in place of '{known[0][0].word}'"
    return ""


def _reordered(ours: _Words, theirs: _Words) -> bool:
    """Whether the texts differ by the order of what "and" or "or" joins, or of two adjectives."""
    left, new, places = _matched(ours, theirs, same)
    if left or new or places == sorted(places):
        return False
    return any(_equal(one, theirs) for one in _orders(ours))


def _orders(words: _Words) -> Iterator[list[Content]]:
    """The orders of words that say as much."""
    for place, word in enumerate(words):
        if word.joins:
            for start in range(place):
                for end in range(place + 2, len(words) + 1):
                    one, other = words[start:place], words[place + 1 : end]
                    if _listed(words[:start], one, other):
                        yield [*words[:start], *other, word, *one, *words[end:]]
        elif word.may_be("ADJ") and all(one.may_be("ADJ") for one in words[place + 1 : place + 2]):
            yield [*words[:place], *words[place + 1 : place + 2], word, *words[place + 2 :]]


def _listed(before: _Words, one: _Words, other: _Words) -> bool:
    """Whether exchanging both sides of "and" preserves the meaning."""
    if any(word.joins or word.links for word in (*one, *other)):
        return False
    if len(one) == len(other) == 1 and one[0].may_be("ADJ") and other[0].may_be("ADJ"):
        return True
    # "A red car and a bus": the first must take along what is said of it.
    return not before or not (before[-1].may_be("ADJ") or before[-1].may_be("NUM"))


def _equal(ours: _Words, theirs: _Words) -> bool:
    return len(ours) == len(theirs) and all(map(same, ours, theirs))
