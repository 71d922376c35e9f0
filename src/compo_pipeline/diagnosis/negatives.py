"""What the hard negatives of a training ask for, by kind of change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from compo_pipeline.language.changes import Change, change
from compo_pipeline.methods.views import PAIR
from compo_pipeline.storage.records import Parse, View

Parser = Callable[[Iterable[str]], Mapping[str, Parse]]
"""Distinct texts to their parses."""


class RememberedParses:
    """A parser that parses no text twice: methods share most of their rules."""

    def __init__(self, parser: Parser) -> None:
        self._parser = parser
        self._known: dict[str, Parse] = {}

    def __call__(self, texts: Iterable[str]) -> Mapping[str, Parse]:
        """The parses of the texts, and of all before them."""
        new = dict.fromkeys(text for text in texts if text not in self._known)
        self._known.update(self._parser(new))
        return self._known


class Negatives(NamedTuple):
    """The hard negatives of a caption, and whether training sees images of them.

    Of an image of a negative, the negative is the right text. Without images a model can learn to
    tell negatives by their text alone.
    """

    caption: str
    texts: Sequence[str]
    shown: bool = False

    @classmethod
    def of(cls, view: View) -> Negatives:
        """Take the negatives of a view; of a pair, those of the anchor."""
        own = view.negatives
        if view.kind == PAIR:
            own = own[: len(own) // 2]
        texts = [text for text in own if text is not None]
        shown = bool(view.counterfactuals and view.counterfactuals[0])
        return cls(view.positives[0], texts, shown)


@dataclass(frozen=True, slots=True)
class AskedChanges:
    """The kinds of change in the hard negatives of a pass of training.

    Attributes:
        captions: number of captions.
        negatives: number of their hard negatives.
        asked: by kind, the number of captions with a negative that has changed them so. A negative
            that has changed something else, or more than one thing, is of no kind.
        shown: by kind, the number of those whose negative has an image.
    """

    captions: int
    negatives: int
    asked: Mapping[Change, int]
    shown: Mapping[Change, int]

    def share(self, kind: Change) -> float:
        """Share of the captions with a negative of a kind."""
        return self.asked.get(kind, 0) / self.captions

    def shown_share(self, kind: Change) -> float:
        """Share of the captions with an image of such a negative."""
        return self.shown.get(kind, 0) / self.captions


def asked_changes(rows: Sequence[Negatives], parser: Parser) -> AskedChanges:
    """Count the negatives by the kind of change that they make to their caption.

    Args:
        rows: of every caption, at least one.
        parser: of the texts.
    """
    parses = parser(dict.fromkeys(text for row in rows for text in (row.caption, *row.texts)))
    asked: Counter[Change] = Counter()
    shown: Counter[Change] = Counter()
    for row in rows:
        kinds = {change(parses[row.caption], parses[text]) for text in row.texts}
        found = [kind for kind in kinds if kind is not None]
        asked.update(found)
        if row.shown:
            shown.update(found)
    return AskedChanges(len(rows), sum(len(row.texts) for row in rows), asked, shown)
