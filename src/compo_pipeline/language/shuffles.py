"""Shuffled word pairs: a caption whose words stay next to their neighbour and no more.

Source: FSC-CLIP, App. A.1 (bi-gram shuffle). Pairs are pairs of written words, so contractions and
hyphenated words stay whole; punctuation around words keeps its place in the sentence.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from compo_pipeline.language.editing import Edit, edited, key, moved, separates, written
from compo_pipeline.language.generated import Generated, Span
from compo_pipeline.records import Parse

_TRIES = 10
_MARKS = frozenset({"PUNCT", "SPACE"})
_APOSTROPHES = frozenset("'’")  # they belong to the word: "dogs' bowls"

Word = tuple[int, int]  # tokens [start, end) without a space between them


def shuffle_bigrams(parse: Parse, rng: random.Random) -> Generated | None:
    """Permute the consecutive, non-overlapping pairs of a caption's words.

    An odd word at the end moves as a pair does; a last period stays last.

    Returns:
        None where there are fewer than two pairs, or ten permutations leave the text as it is.
    """
    words = list(_written_words(parse))
    pairs = [words[start : start + 2] for start in range(0, len(words), 2)]
    shuffled = pairs.copy()
    for _ in range(_TRIES if len(pairs) > 1 else 0):
        rng.shuffle(shuffled)
        text, spans = _rewritten(parse, words, [word for pair in shuffled for word in pair])
        if key(text) != key(parse.text):
            parted = [pair for pair, now in zip(pairs, shuffled, strict=True) if pair != now]
            told = tuple(written(parse, pair[0][0], pair[-1][1]) for pair in parted)
            return Generated(text, "bigram", "pairs", told, spans)
    return None


def _rewritten(
    parse: Parse, places: Sequence[Word], words: Sequence[Word]
) -> tuple[str, tuple[Span, ...]]:
    """The text with other words at the words' places; places that read as before are no edits."""
    edits = []
    for place, word in zip(places, words, strict=True):
        text = written(parse, *word)
        if key(text) != key(written(parse, *place)):
            edits.append(Edit(*place, moved(parse, place[0], text, parse, word[0])))
    return edited(parse, edits)


def _written_words(parse: Parse) -> Iterator[Word]:
    """Words as spaces part them, without the punctuation at their ends."""
    start = 0
    for end in range(1, len(parse.words) + 1):
        if end < len(parse.words) and not _apart(parse, end):
            continue
        first, last = start, end
        while first < last and _punctuation(parse, first):
            first += 1
        while first < last and _punctuation(parse, last - 1):
            last -= 1
        if first < last:
            yield first, last
        start = end


def _apart(parse: Parse, place: int) -> bool:
    """Whether a space stands between a token and the one before it."""
    before = parse.words[place - 1]
    gap = parse.offsets[place] > parse.offsets[place - 1] + len(before)
    return gap or before.isspace() or parse.words[place].isspace()


def _punctuation(parse: Parse, place: int) -> bool:
    word = parse.words[place]
    return parse.upos[place] in _MARKS and word not in _APOSTROPHES and all(map(separates, word))
