"""Phrases of views, for the page that shows them: marked in their captions, and counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from compo_pipeline.records import View

_NAMED = 24  # phrases told of an epoch


@dataclass(frozen=True, slots=True)
class PhraseTally:
    """Of all views of an epoch that have phrases.

    `mean` is the number of phrases a caption, `whole` the captions that are their own only phrase,
    `distinct` the phrases that read differently without case, `common` the most frequent of these.
    """

    captions: int
    mean: float
    whole: int
    distinct: int
    common: tuple[tuple[str, int], ...]


def tally(views: Sequence[View]) -> PhraseTally | None:
    """What there is to tell, None where no view has a phrase."""
    captions = [view for view in views if view.phrases]
    if not captions:
        return None
    counts = Counter(phrase.casefold() for view in captions for phrase in view.phrases)
    return PhraseTally(
        captions=len(captions),
        mean=counts.total() / len(captions),
        whole=sum(map(whole, captions)),
        distinct=len(counts),
        common=tuple(counts.most_common(_NAMED)),
    )


def whole(view: View) -> bool:
    """Whether the caption, closing marks apart, is its own only phrase."""
    if len(view.phrases) != 1:
        return False
    start, end = view.phrase_spans
    rest = view.positives[0][:start] + view.positives[0][end:]
    return not any(map(str.isalnum, rest))


def marked(view: View) -> Iterator[tuple[str, int]]:
    """The caption in pieces, each with the number of its phrase from 1 on, 0 between phrases."""
    caption, position = view.positives[0], 0
    places = iter(view.phrase_spans)
    for number, (start, end) in enumerate(zip(places, places, strict=True), start=1):
        if position < start:
            yield caption[position:start], 0
        yield caption[start:end], number
        position = end
    if position < len(caption):
        yield caption[position:], 0
