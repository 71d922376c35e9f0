"""Whether an edited caption says the same as the caption: what negatives must not, positives must.

A text is judged by its words, in their order, and by what the caption can be turned into (voice,
relations, lists). What the lexicon does not know gets the benefit of the doubt, once for each word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from compo_pipeline.counterfactuals.editors.contents import (
    Content,
    agree,
    contents,
    differ,
    exclude,
    same,
)
from compo_pipeline.language.clauses import turned_relations, turned_voices
from compo_pipeline.language.editing import bare, edited
from compo_pipeline.language.lexicon import load_lexicon
from compo_pipeline.records import Parse

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


def kept(caption: str, text: str) -> float:
    """The share of a caption's words that stand in a text too, or a synonym does, in [0, 1]; all,
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
    clauses = chain(turned_voices(caption, load_lexicon()), turned_relations(caption))
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
    """Whether what stands on both sides of "and" says as much the other way round."""
    if any(word.joins or word.links for word in (*one, *other)):
        return False
    if len(one) == len(other) == 1 and one[0].may_be("ADJ") and other[0].may_be("ADJ"):
        return True
    # "A red car and a bus": the first must take along what is said of it.
    return not before or not (before[-1].may_be("ADJ") or before[-1].may_be("NUM"))


def _equal(ours: _Words, theirs: _Words) -> bool:
    return len(ours) == len(theirs) and all(map(same, ours, theirs))
