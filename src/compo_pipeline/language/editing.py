"""Edits of a parsed caption: which words can be lifted out, and what is written in their place.

Words are compared without case, since models read captions in lower case.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from compo_pipeline.language.generated import Span
from compo_pipeline.records import Parse


class Edit(NamedTuple):
    """What takes the place of the tokens `[start, end)`."""

    start: int
    end: int
    text: str


def key(text: str) -> str:
    """A text as it is compared."""
    return text.casefold()


def bare(text: str) -> str:
    """A sentence without case and closing marks: what tells it from another one."""
    return key(text).rstrip(" .?!")


@lru_cache(maxsize=4096)
def separates(character: str) -> bool:
    """Whether a character (or the text's end) is punctuation or a space."""
    return not character or unicodedata.category(character)[0] in "PZ" or character.isspace()


def extent(parse: Parse, start: int, end: int) -> Span:
    """The characters that the tokens `[start, end)` take up."""
    return parse.offsets[start], parse.offsets[end - 1] + len(parse.words[end - 1])


def written(parse: Parse, start: int, end: int) -> str:
    """The tokens `[start, end)` as the text has them."""
    first, last = extent(parse, start, end)
    return parse.text[first:last]


def movable(parse: Parse, start: int, end: int) -> bool:
    """Whether the tokens `[start, end)` can leave their place: they are more than punctuation, and
    no pieces of a longer run of characters.

    "do" and "n't" are two tokens of one written word and stay together; "cat" in "cat's" and
    "red" in "red-haired" can move.
    """
    first, last = extent(parse, start, end)
    text = parse.text
    return (
        separates(text[first - 1 : first] if first else "")
        and separates(text[last : last + 1])
        and not all(map(separates, text[first:last]))
    )


def moved(to: Parse, place: int, text: str, source: Parse, taken: int) -> str:
    """A text as it is written at its new place: capitals that open sentences do not move.

    Args:
        to: the sentence that gets the text.
        place: the token that it takes the place of.
        text: the text, as its own sentence has it.
        source: that sentence.
        taken: the text's first token there.
    """
    word = source.words[taken]
    borrowed = source.upos[taken] != "PROPN" and word != "I" and word[1:] == word[1:].lower()
    if borrowed and _opens(source, taken):
        text = _with_first(text, text[0].lower())
    if _opens(to, place) and to.words[place][0].isupper():
        text = _with_first(text, text[0].upper())
    return text


def edited(parse: Parse, edits: Sequence[Edit]) -> tuple[str, tuple[Span, ...]]:
    """The text with the edits made, and where the new pieces stand; edits are in text order."""
    pieces: list[str] = []
    spans: list[Span] = []
    position = copied = 0
    for start, end, text in edits:
        first, last = extent(parse, start, end)
        pieces += [parse.text[copied:first], text]
        position += first - copied
        spans.append((position, position + len(text)))
        position += len(text)
        copied = last
    return "".join([*pieces, parse.text[copied:]]), tuple(spans)


def exchanged(
    parse: Parse, one: tuple[int, int], other: tuple[int, int]
) -> tuple[str, tuple[Span, ...]]:
    """The text after two runs of tokens `[start, end)`, the earlier one first, changed places."""
    return edited(
        parse,
        [
            Edit(*place, moved(parse, place[0], written(parse, *taken), parse, taken[0]))
            for place, taken in ((one, other), (other, one))
        ],
    )


def _opens(parse: Parse, place: int) -> bool:
    """Whether no word stands before this one in its sentence."""
    return all(map(separates, parse.text[: parse.offsets[place]]))


def _with_first(word: str, letter: str) -> str:
    """A word with another first letter, unless that makes it another word without case."""
    changed = letter + word[1:]
    return changed if changed.lower() == word.lower() else word
