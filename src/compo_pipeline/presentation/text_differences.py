"""Where texts differ, word by word, for pages that mark it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

_WORD = re.compile(r"\w+(?:['’-]\w+)*|[^\w\s]")


def marked(text: str, others: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """A text in pieces, each with whether it differs from the other text that is nearest to it.

    Texts are compared word by word and without case.
    """
    words = list(_WORD.finditer(text))
    matchers = [
        SequenceMatcher(None, _folded(other), _folded(text), autojunk=False) for other in others
    ]
    position = 0
    nearest = max(matchers, key=SequenceMatcher.ratio)
    for change, _, _, start, end in nearest.get_opcodes():
        if change == "equal" or start == end:
            continue
        first, last = words[start].start(), words[end - 1].end()
        if position < first:
            yield text[position:first], False
        yield text[first:last], True
        position = last
    if position < len(text):
        yield text[position:], False


def _folded(text: str) -> list[str]:
    return [word.casefold() for word in _WORD.findall(text)]
