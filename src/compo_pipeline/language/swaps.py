"""CLIC's hard negatives: two words of one part of speech change places.

Source: "Advancing Compositional Awareness in CLIP with Efficient Fine-Tuning", App. B.2 and C.
Words are swapped as tokens, in their own case; only the capital that opens a sentence stays where
it is. Words are compared without case, since models read captions in lower case.
"""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Literal, NamedTuple

from compo_pipeline.records import Parse

# The paper's excluded categories, and what is no word at all.
EXCLUDED_UPOS = frozenset(
    {"AUX", "CCONJ", "DET", "INTJ", "PART", "PUNCT", "SCONJ", "SYM", "X", "SPACE"}
)
ANY = "any"

Span = tuple[int, int]
Edit = tuple[int, str]  # a token's index, and the word that takes its place


@dataclass(frozen=True, slots=True)
class Swap:
    """Texts after a swap.

    Attributes:
        first: the first sentence.
        second: the second sentence; empty for a swap within one.
        category: the common part of speech, or `any` where the two words share none.
        words: the word taken from the first sentence (or first place) and the one from the second.
        spans: character spans that changed, at the first word's place(s) and at the second's.
    """

    first: str
    second: str
    category: str
    words: tuple[str, str]
    spans: tuple[tuple[Span, ...], tuple[Span, ...]]


class _Word(NamedTuple):
    """A token that may be swapped."""

    place: int
    key: str  # for comparisons
    upos: str


def swap_across(
    first: Parse,
    second: Parse,
    rng: random.Random,
    *,
    excluded: Set[str] = EXCLUDED_UPOS,
    occurrence: Literal["drawn", "all"] = "drawn",
) -> Swap | None:
    """Exchange a word of one sentence for a word of the other.

    A category common to both sentences is drawn, then a distinct word of each side; words that
    stand in both sentences take no part. Without a common category, any two different words.

    Args:
        first: one sentence.
        second: the other one.
        rng: decides; equal states give equal texts.
        excluded: parts of speech that make no category.
        occurrence: where a drawn word stands more than once in its sentence, replace the
            occurrence drawn or (as the authors' code does) all of them.

    Returns:
        None where no two different words exist, or where the outcome is the two sentences in
        the other order ("a red ball", "a blue ball"), which is no negative.
    """
    ours, theirs = list(_swappable(first)), list(_swappable(second))
    shared = {word.key for word in ours} & {word.key for word in theirs}
    category, drawn = _draw(ours, theirs, rng, excluded, shared)
    if drawn is None:
        return None
    a, b = drawn
    word_a, word_b = first.words[a.place], second.words[b.place]
    places_a = _places(first, ours, a, occurrence)
    places_b = _places(second, theirs, b, occurrence)
    new_first, spans_a = _edited(
        first, [(i, _moved(first, i, word_b, second, b)) for i in places_a]
    )
    new_second, spans_b = _edited(
        second, [(i, _moved(second, i, word_a, first, a)) for i in places_b]
    )
    if (_bare(new_first), _bare(new_second)) == (_bare(second.text), _bare(first.text)):
        return None
    return Swap(new_first, new_second, category, (word_a, word_b), (spans_a, spans_b))


def swap_within(
    parse: Parse, rng: random.Random, *, excluded: Set[str] = EXCLUDED_UPOS
) -> Swap | None:
    """Exchange two different words of one sentence, drawn as `swap_across` draws.

    Returns:
        None where the sentence holds no two different words.
    """
    words = list(_swappable(parse))
    category, drawn = _draw(words, words, rng, excluded)
    if drawn is None:
        return None
    a, b = sorted(drawn)
    moved = [
        (a.place, _moved(parse, a.place, parse.words[b.place], parse, b)),
        (b.place, _moved(parse, b.place, parse.words[a.place], parse, a)),
    ]
    text, (span_a, span_b) = _edited(parse, moved)
    pair = (parse.words[a.place], parse.words[b.place])
    return Swap(text, "", category, pair, ((span_a,), (span_b,)))


def _swappable(parse: Parse) -> Iterator[_Word]:
    """Words that can change places: no punctuation, no piece of a longer run of characters.

    "do" and "n't" are two tokens of one written word and stay together; "cat" in "cat's" and
    "red" in "red-haired" can move.
    """
    for index, (word, start) in enumerate(zip(parse.words, parse.offsets, strict=True)):
        before = parse.text[start - 1 : start] if start else ""
        end = start + len(word)
        after = parse.text[end : end + 1]
        if not all(map(_separates, word)) and _separates(before) and _separates(after):
            yield _Word(index, _key(word), parse.upos[index])


def _separates(character: str) -> bool:
    """Whether a character (or the text's end) is punctuation or a space."""
    return not character or unicodedata.category(character)[0] in "PZ" or character.isspace()


def _draw(
    ours: Sequence[_Word],
    theirs: Sequence[_Word],
    rng: random.Random,
    excluded: Set[str],
    shared: Set[str] = frozenset(),
) -> tuple[str, tuple[_Word, _Word] | None]:
    """A category with two different words, one a side, and such words; else any two.

    Words that both sentences share make no category.
    """
    groups = [_by_category(side, excluded, shared) for side in (ours, theirs)]
    common = [
        name
        for name in sorted(groups[0].keys() & groups[1].keys())
        if len({word.key for group in groups for word in group[name]}) > 1
    ]
    if not common:
        return ANY, _draw_pair(ours, theirs, rng)
    category = rng.choice(common)
    return category, _draw_pair(groups[0][category], groups[1][category], rng)


def _by_category(
    words: Sequence[_Word], excluded: Set[str], shared: Set[str]
) -> dict[str, list[_Word]]:
    groups: dict[str, list[_Word]] = {}
    for word in words:
        if word.upos not in excluded and word.key not in shared:
            groups.setdefault(word.upos, []).append(word)
    return groups


def _draw_pair(
    ours: Sequence[_Word], theirs: Sequence[_Word], rng: random.Random
) -> tuple[_Word, _Word] | None:
    """Two different words drawn uniformly among distinct ones, and an occurrence of each."""
    keys = [dict.fromkeys(word.key for word in side) for side in (ours, theirs)]
    pairs = [(a, b) for a in keys[0] for b in keys[1] if a != b]
    if not pairs:
        return None
    a, b = rng.choice(pairs)
    return (
        rng.choice([word for word in ours if word.key == a]),
        rng.choice([word for word in theirs if word.key == b]),
    )


def _places(
    parse: Parse, words: Sequence[_Word], drawn: _Word, occurrence: Literal["drawn", "all"]
) -> list[int]:
    if occurrence == "drawn":
        return [drawn.place]
    return [word.place for word in words if word.key == drawn.key]


def _moved(to: Parse, place: int, word: str, source: Parse, taken: _Word) -> str:
    """A word as it is written at its new place: capitals that open sentences do not move."""
    borrowed = taken.upos != "PROPN" and word != "I" and word[1:] == word[1:].lower()
    if borrowed and _opens(source, taken.place):
        word = _with_first(word, word[0].lower())
    if _opens(to, place) and to.words[place][0].isupper():
        word = _with_first(word, word[0].upper())
    return word


def _opens(parse: Parse, place: int) -> bool:
    """Whether no word stands before this one in its sentence."""
    return all(_separates(character) for character in parse.text[: parse.offsets[place]])


def _with_first(word: str, letter: str) -> str:
    """A word with another first letter, unless that makes it another word without case."""
    changed = letter + word[1:]
    return changed if changed.lower() == word.lower() else word


def _edited(parse: Parse, edits: Sequence[Edit]) -> tuple[str, tuple[Span, ...]]:
    """The text with words replaced, and where the new ones stand; edits are in text order."""
    pieces: list[str] = []
    spans: list[Span] = []
    position = copied = 0
    for index, word in edits:
        start = parse.offsets[index]
        pieces += [parse.text[copied:start], word]
        position += start - copied
        spans.append((position, position + len(word)))
        position += len(word)
        copied = start + len(parse.words[index])
    return "".join([*pieces, parse.text[copied:]]), tuple(spans)


def _key(text: str) -> str:
    return text.casefold()


def _bare(text: str) -> str:
    """A sentence without case and closing marks: what tells it from another one."""
    return _key(text).rstrip(" .?!")
