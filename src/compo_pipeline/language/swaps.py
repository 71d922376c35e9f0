"""CLIC's hard negatives: two words of one part of speech change places.

Source: "Advancing Compositional Awareness in CLIP with Efficient Fine-Tuning", App. B.2 and C.
Words are swapped as tokens, in their own case; only the capital that opens a sentence stays where
it is.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import combinations, product
from typing import Literal, NamedTuple

from compo_pipeline.core.records import Parse
from compo_pipeline.core.sentences import bare
from compo_pipeline.language import sense
from compo_pipeline.language.editing import (
    Edit,
    Generated,
    Phrase,
    apply_edits,
    exchange_edits,
    fold_case,
    is_movable,
    recapitalise,
)

# The paper's excluded categories, and what is no word at all.
EXCLUDED_UPOS = frozenset("AUX CCONJ DET INTJ PART PUNCT SCONJ SYM X SPACE".split())
ANY = "any"


@dataclass(frozen=True, slots=True)
class Swap:
    """Two sentences after exchanging a word of one for a word of the other.

    Attributes:
        first: the first sentence.
        second: the second sentence.
        category: the common part of speech, or `any` where the two words share none.
        words: the word taken from the first sentence and the one from the second.
    """

    first: str
    second: str
    category: str
    words: tuple[str, str]


class _Word(NamedTuple):
    """A token that may be swapped: its index, case-folded text and part of speech."""

    place: int
    key: str  # for comparisons
    upos: str

    @property
    def phrase(self) -> Phrase:
        """Token span [start, end) of this single word."""
        return self.place, self.place + 1


def swap_across(
    first: Parse,
    second: Parse,
    rng: random.Random,
    *,
    occurrence: Literal["drawn", "all"] = "drawn",
    careful: bool = False,
) -> Swap | None:
    """Exchange a word of one sentence for a word of another, of one part of speech.

    A category common to both sentences is drawn, then a distinct word of each side; words that
    are in both sentences take no part. Without a common category, any two different words.

    Args:
        first: one sentence.
        second: the other one.
        rng: random generator, whose state determines the text.
        occurrence: occurrence of a repeated word to replace: the drawn one or, as in the authors'
            code, all of them.
        careful: leave pairs out that make broken English (`sense`), and give up where none is
            left: a departure from the paper.

    Returns:
        None where no two different words exist, or where the outcome is the two sentences in
        the other order ("a red ball", "a blue ball"), which is no negative.
    """
    ours, theirs = list(_swappable_words(first)), list(_swappable_words(second))
    shared = {word.key for word in ours} & {word.key for word in theirs}
    if careful:
        mine, yours = (
            _careful_candidates(parse, words, shared)
            for parse, words in ((first, ours), (second, theirs))
        )
        pairs = (
            (a, b)
            for a, b in product(mine, yours)
            if a.upos == b.upos and sense.can_replace(first, a.phrase, second, b.phrase)
        )
        category, drawn = _draw_careful(pairs, rng)
    else:
        category, drawn = _draw_as_paper(ours, theirs, rng, shared)
    if drawn is None:
        return None
    a, b = drawn
    new_first = _replace_tokens(b, second, first, _occurrences(ours, a, occurrence))
    new_second = _replace_tokens(a, first, second, _occurrences(theirs, b, occurrence))
    if (bare(new_first), bare(new_second)) == (
        bare(second.text),
        bare(first.text),
    ):
        return None
    words = (first.words[a.place], second.words[b.place])
    return Swap(new_first, new_second, category, words)


def swap_within(
    parse: Parse,
    rng: random.Random,
    *,
    careful: bool = False,
) -> Generated | None:
    """Exchange two different words of one sentence, of one part of speech where possible.

    They are drawn as `swap_across` draws.

    A careful swap leaves out pairs whose exchange says the same, too.

    Returns:
        None where the sentence holds no two different words.
    """
    words = list(_swappable_words(parse))
    if careful:
        pairs = (
            (a, b)
            for a, b in combinations(_careful_candidates(parse, words), 2)
            if a.upos == b.upos and a.key != b.key and sense.can_exchange(parse, a.phrase, b.phrase)
        )
        category, drawn = _draw_careful(pairs, rng)
    else:
        category, drawn = _draw_as_paper(words, words, rng)
    if drawn is None:
        return None
    a, b = sorted(drawn)
    text = apply_edits(parse, exchange_edits(parse, a.phrase, b.phrase))
    pair = (parse.words[a.place], parse.words[b.place])
    return Generated(text, "swap_within", category, pair)


def _swappable_words(parse: Parse) -> Iterator[_Word]:
    """Words of a sentence that can be moved alone, because they are not pieces of a longer word."""
    for index, word in enumerate(parse.words):
        if is_movable(parse, index, index + 1):
            yield _Word(index, fold_case(word), parse.upos[index])


def _draw_as_paper(
    ours: Sequence[_Word],
    theirs: Sequence[_Word],
    rng: random.Random,
    shared: Set[str] = frozenset(),
) -> tuple[str, tuple[_Word, _Word] | None]:
    """Draw two different words as in CLIC's paper: one per sentence, of a shared part of speech.

    Without a shared part of speech, any two words. Words that both sentences have do not count.
    """
    mine, yours = (_by_category(side, shared) for side in (ours, theirs))
    common = [
        name
        for name in sorted(mine.keys() & yours.keys())
        if len({word.key for word in (*mine[name], *yours[name])}) > 1
    ]
    if not common:
        return ANY, _draw_distinct_words(ours, theirs, rng)
    category = rng.choice(common)
    return category, _draw_distinct_words(mine[category], yours[category], rng)


def _careful_candidates(
    parse: Parse, words: Sequence[_Word], shared: Set[str] = frozenset()
) -> list[_Word]:
    """Words fit for a swap: no excluded part of speech, not in both sentences, no compound part."""
    return [
        word
        for word in words
        if word.upos not in EXCLUDED_UPOS
        and word.key not in shared
        and sense.movable_unit(parse, word.phrase) == word.phrase
    ]


def _draw_careful(
    pairs: Iterable[tuple[_Word, _Word]], rng: random.Random
) -> tuple[str, tuple[_Word, _Word] | None]:
    """Draw a part of speech of the candidate pairs, then one of its pairs, or None."""
    groups: dict[str, list[tuple[_Word, _Word]]] = {}
    for pair in pairs:
        groups.setdefault(pair[0].upos, []).append(pair)
    if not groups:
        return ANY, None
    category = rng.choice(sorted(groups))
    return category, rng.choice(groups[category])


def _by_category(words: Sequence[_Word], shared: Set[str]) -> dict[str, list[_Word]]:
    """Words of a sentence by part of speech, without excluded ones and words of both sentences."""
    groups: dict[str, list[_Word]] = {}
    for word in words:
        if word.upos not in EXCLUDED_UPOS and word.key not in shared:
            groups.setdefault(word.upos, []).append(word)
    return groups


def _draw_distinct_words(
    ours: Sequence[_Word], theirs: Sequence[_Word], rng: random.Random
) -> tuple[_Word, _Word] | None:
    """Draw two different words, uniformly by distinct word, then one occurrence of each word."""
    keys = [dict.fromkeys(word.key for word in side) for side in (ours, theirs)]
    pairs = [(a, b) for a in keys[0] for b in keys[1] if a != b]
    if not pairs:
        return None
    a, b = rng.choice(pairs)
    return (
        rng.choice([word for word in ours if word.key == a]),
        rng.choice([word for word in theirs if word.key == b]),
    )


def _occurrences(
    words: Sequence[_Word], drawn: _Word, occurrence: Literal["drawn", "all"]
) -> list[int]:
    """Token indices to replace: the index of the drawn word, or those of all its occurrences."""
    if occurrence == "drawn":
        return [drawn.place]
    return [word.place for word in words if word.key == drawn.key]


def _replace_tokens(word: _Word, source: Parse, to: Parse, places: Sequence[int]) -> str:
    """Text of a sentence with the words at some tokens replaced."""
    written = source.words[word.place]
    return apply_edits(
        to, [Edit(at, at + 1, recapitalise(to, at, written, source, word.place)) for at in places]
    )
