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

from compo_pipeline.language.clauses import changed_voices, inverted_relations
from compo_pipeline.language.editing import apply_edits, bare
from compo_pipeline.language.lexicon import Lemma, load_lexicon
from compo_pipeline.language.scene_graph import PRONOUNS
from compo_pipeline.storage.records import Parse

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
    """One lexicon entry of a word form: a lemma with a part of speech.

    Attributes:
        lemma: its name.
        upos: its part of speech.
        plural: whether the form is a plural noun's.
        described: whether the lexicon says more of it than that it exists.
    """

    lemma: str
    upos: str
    plural: bool
    described: bool


@dataclass(frozen=True, slots=True)
class ContentWord:
    """A word of a text with its lexicon entries, or an expression such as "fire hydrant".

    Attributes:
        word: as it is compared.
        readings: nothing for words that are not in the lexicon.
        negates: "no", "without" and the like.
        is_conjunction: "and", "or".
    """

    word: str
    readings: frozenset[Reading] = frozenset()
    negates: bool = False
    is_conjunction: bool = False

    @property
    def is_described(self) -> bool:
        """Whether the lexicon describes the word, by relations to other words or as a negation."""
        return self.negates or any(one.described for one in self.readings)

    @property
    def names_thing(self) -> bool:
        """Whether the word can only be a noun, an adjective or a number, or is unknown."""
        return not self.negates and all(one.upos in _THINGS for one in self.readings)

    @property
    def is_verb_or_preposition(self) -> bool:
        """Whether the word can only be a verb or a preposition."""
        return bool(self.readings) and all(one.upos in _LINKS for one in self.readings)

    def may_be(self, upos: str) -> bool:
        """Whether the word can have this part of speech."""
        return any(one.upos == upos for one in self.readings)


@lru_cache(maxsize=4096)
def content_words(text: str) -> tuple[ContentWord, ...]:
    """Words of a text that carry meaning, in text order; "and" and "or" are included."""
    index = _reading_index()
    words = [_OWNER.sub("", word) or word for word in _WORD.findall(text.casefold())]
    found, place = [], 0
    while place < len(words):
        for length in range(min(index.longest.get(words[place], 1), len(words) - place), 0, -1):
            word = " ".join(words[place : place + length])
            if length == 1 or word in index.readings:
                break
        place += length
        if word not in _EMPTY:
            found.append(_content_word(word))
    return tuple(found)


def _content_word(word: str) -> ContentWord:
    """A lower-case word or expression, with its entries in the lexicon."""
    if word in _JOINS:
        return ContentWord("and" if word == "&" else word, is_conjunction=True)
    if word in _DENIALS or word.endswith(("n't", "n’t")):
        return ContentWord("not", negates=True)
    if pronoun := PRONOUNS.get(word):
        return ContentWord(pronoun, frozenset({Reading(pronoun, _PRONOUN, False, True)}))
    if word.isdecimal() and int(word) < len(_DIGITS):
        word = _DIGITS[int(word)]
    return ContentWord(word, _reading_index().readings.get(word, frozenset()))


class _ReadingIndex(NamedTuple):
    """Index of the lexicon by word form, with the longest expression by its first word."""

    readings: dict[str, frozenset[Reading]]
    longest: dict[str, int]


@cache
def _reading_index() -> _ReadingIndex:
    """Index of the shipped lexicon by word form, built once per process."""
    readings: dict[str, set[Reading]] = defaultdict(set)
    longest: dict[str, int] = {}
    for lemma in load_lexicon().lemmas.values():
        described = bool(lemma.groups or lemma.opposites)
        for tag, form in lemma.forms.items():
            words = form.replace("-", " ").split()
            if _JOINS.intersection(words):
                continue  # "black and white" is "white and black"
            readings[" ".join(words)].add(Reading(lemma.name, lemma.upos, tag == "NNS", described))
            longest[words[0]] = max(longest.get(words[0], 1), len(words))
    return _ReadingIndex({form: frozenset(found) for form, found in readings.items()}, longest)


def same_meaning(one: ContentWord, other: ContentWord) -> bool:
    """Whether two words mean the same: equal, forms of one verb, or synonyms."""
    if one.word == other.word:
        return True
    pairs = _reading_pairs(one, other)
    if any(a.lemma == b.lemma and a.plural != b.plural for a, b in pairs):
        return False  # "rides" may be a verb, but behind "a ride" it is not
    return any(
        a.lemma == b.lemma
        or (a.upos != _PRONOUN and b.lemma in load_lexicon().synonyms(_find_lemma(a)))
        for a, b in pairs
        if a.plural == b.plural
    )


def may_both_be_true(one: ContentWord, other: ContentWord) -> bool:
    """Whether two words may both be true of one thing, as synonyms or "dog" and "puppy"."""
    return same_meaning(one, other) or any(
        a.lemma != b.lemma and b.lemma in load_lexicon().compatible(_find_lemma(a))
        for a, b in _reading_pairs(one, other)
        if a.upos != _PRONOUN and a.plural == b.plural
    )


def known_to_differ(one: ContentWord, other: ContentWord) -> bool:
    """Whether the lexicon lists two words as different things, attributes or numbers."""
    return not may_both_be_true(one, other) and any(
        a.upos in _THINGS and a.described and b.described for a, b in _reading_pairs(one, other)
    )


def mutually_exclusive(one: ContentWord, other: ContentWord) -> bool:
    """Whether the lexicon says that two words are never true of the same thing."""
    return not may_both_be_true(one, other) and any(
        _excludes(a, b) or _excludes(b, a) for a, b in _reading_pairs(one, other)
    )


def _excludes(a: Reading, b: Reading) -> bool:
    """Whether one lexicon entry has the other among its antonyms or co-hyponyms."""
    if a.upos == _PRONOUN:
        return a.lemma != b.lemma
    lexicon = load_lexicon()
    one, other = _find_lemma(a), _find_lemma(b)
    if b.lemma in lexicon.compatible(one):
        return a.plural != b.plural
    opposites = {opposite.lemma for opposite in one.opposites}
    return b.lemma in opposites or bool(set(one.groups) & set(other.groups))


def _reading_pairs(one: ContentWord, other: ContentWord) -> list[tuple[Reading, Reading]]:
    """Pairs of lexicon entries of two words that have the same part of speech."""
    return [(a, b) for a in one.readings for b in other.readings if a.upos == b.upos]


def _find_lemma(reading: Reading) -> Lemma:
    """Lemma of the shipped lexicon that a `Reading` (lemma name and part of speech) refers to."""
    return load_lexicon().lemmas[reading.lemma, reading.upos]


_Words = Sequence[ContentWord]
_Alike = Callable[[ContentWord, ContentWord], bool]


def negative_flaw(caption: Parse, text: str) -> str:
    """Reason why a text is no negative, as it says the same as the caption; empty if none."""
    if _is_turned_clause(caption, text) or _differs_in_free_order(
        content_words(caption.text), content_words(text)
    ):
        return "says the same as the caption in another order"
    ours, theirs = _without_conjunctions(caption.text), _without_conjunctions(text)
    left, new, _ = _match_words(ours, theirs, same_meaning)
    # What may be true of one thing ("beach", "ocean") is not true of each other's places.
    alike = may_both_be_true if left or new else same_meaning
    if _count_negations(ours) == _count_negations(theirs) and _is_subsequence(theirs, ours, alike):
        less = len(theirs) < len(ours)
        return "only leaves words out" if less else "says the same as the caption"
    return ""


def kept_share(caption: str, text: str) -> float:
    """Share of a caption's words that a text has, or synonyms of these words, in [0, 1].

    It is 1 where a single word is missing.
    """
    ours = _without_conjunctions(caption)
    left, _, _ = _match_words(ours, _without_conjunctions(text), same_meaning)
    return 1 - len(left) / len(ours) if len(left) > 1 else 1.0


def positive_flaw(caption: Parse, text: str) -> str:
    """Reason why a text is no positive, as its meaning differs from the caption; empty if none."""
    if _is_turned_clause(caption, text):
        return ""
    ours, theirs = _without_conjunctions(caption.text), _without_conjunctions(text)
    if _count_negations(ours) != _count_negations(theirs):
        return "denies what the caption says, or the other way round"
    left, new, places = _match_words(ours, theirs, same_meaning)
    moved = _order_flaw(left, new, places)
    if moved and not _differs_in_free_order(content_words(caption.text), content_words(text)):
        return moved
    left, new, _ = _match_words(left, new, may_both_be_true)
    return _substitution_flaw(left, new)


def _is_turned_clause(caption: Parse, text: str) -> bool:
    """Whether a rule turns the caption into the text, as active into passive voice."""
    clauses = chain(changed_voices(caption), inverted_relations(caption))
    return any(bare(apply_edits(caption, one.edits)[0]) == bare(text) for one in clauses)


def _without_conjunctions(text: str) -> list[ContentWord]:
    """Words of a text that carry meaning, without "and" and "or"."""
    return [word for word in content_words(text) if not word.is_conjunction]


def _count_negations(words: _Words) -> int:
    """Number of negating words, such as "no" and "without"."""
    return sum(word.negates for word in words)


def _is_subsequence(theirs: _Words, ours: _Words, alike: _Alike) -> bool:
    """Whether all words of one text match words of another text, in the same order."""
    rest = iter(ours)
    return all(any(alike(word, one) for one in rest) for word in theirs)


def _match_words(
    ours: _Words, theirs: _Words, alike: _Alike
) -> tuple[list[ContentWord], list[ContentWord], list[int]]:
    """Match each word of one text with the first unmatched word of another that is similar.

    Returns:
        Our words without a partner, theirs without one, and the partners' places among theirs, in
        our order.
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


def _order_flaw(left: _Words, new: _Words, places: list[int]) -> str:
    """Reason why the order of the matched words changes the meaning; empty if it does not.

    Another order needs a passive ("by") in one of the two texts, and a passive another order.
    """
    by = any(word.word == "by" for word in left) != any(word.word == "by" for word in new)
    if places != sorted(places):
        return "" if by else "the same words in another order may mean another thing"
    prepositions = [sum(word.may_be("ADP") for word in words) for words in (left, new)]
    return "turns round who does what" if by and 0 in prepositions else ""


def _substitution_flaw(left: list[ContentWord], new: list[ContentWord]) -> str:
    """Reason why the unmatched words change the meaning; empty if they do not."""
    for word in new:
        if other := next(
            (one for one in left if mutually_exclusive(one, word) or known_to_differ(one, word)),
            None,
        ):
            return f"says '{word.word}' in place of '{other.word}'"
    gone = [word for word in left if word.names_thing]
    added = [word for word in new if word.names_thing]
    if len(added) > len(gone):
        return f"adds '{added[-1].word}'"
    if len(gone) > len(added):
        return f"leaves out '{gone[-1].word}'"
    # A known word may have given way to an unknown one, never to another known one.
    known = [[word for word in words if word.is_described] for words in (gone, added)]
    if len(known[0]) + len(known[1]) > len(gone):
        return f"says '{known[1][0].word}' in place of '{known[0][0].word}'"
    return ""


def _differs_in_free_order(ours: _Words, theirs: _Words) -> bool:
    """Whether texts differ only in the order around "and" or "or", or of two adjectives."""
    left, new, places = _match_words(ours, theirs, same_meaning)
    if left or new or places == sorted(places):
        return False
    return any(_same_word_by_word(one, theirs) for one in _equivalent_orders(ours))


def _equivalent_orders(words: _Words) -> Iterator[list[ContentWord]]:
    """Yield the words in each order of the same meaning, changed around "and", "or", adjectives."""
    for place, word in enumerate(words):
        if word.is_conjunction:
            for start in range(place):
                for end in range(place + 2, len(words) + 1):
                    one, other = words[start:place], words[place + 1 : end]
                    if _are_exchangeable_conjuncts(words[:start], one, other):
                        yield [*words[:start], *other, word, *one, *words[end:]]
        elif word.may_be("ADJ") and all(one.may_be("ADJ") for one in words[place + 1 : place + 2]):
            yield [*words[:place], *words[place + 1 : place + 2], word, *words[place + 2 :]]


def _are_exchangeable_conjuncts(before: _Words, one: _Words, other: _Words) -> bool:
    """Whether the words on both sides of "and" can be exchanged with the same meaning."""
    if any(word.is_conjunction or word.is_verb_or_preposition for word in (*one, *other)):
        return False
    if len(one) == len(other) == 1 and one[0].may_be("ADJ") and other[0].may_be("ADJ"):
        return True
    # "A red car and a bus": the first must take along what is said of it.
    return not before or not (before[-1].may_be("ADJ") or before[-1].may_be("NUM"))


def _same_word_by_word(ours: _Words, theirs: _Words) -> bool:
    """Whether two texts have words of the same meanings in the same order."""
    return len(ours) == len(theirs) and all(map(same_meaning, ours, theirs))
