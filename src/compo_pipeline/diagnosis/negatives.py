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
    """A parser with a cache, so that no text is parsed twice.

    Methods share most of their rules.
    """

    def __init__(self, parser: Parser) -> None:
        self._parser = parser
        self._known: dict[str, Parse] = {}

    def __call__(self, texts: Iterable[str]) -> Mapping[str, Parse]:
        """The parses of the texts, and of all before them."""
        new = dict.fromkeys(text for text in texts if text not in self._known)
        self._known.update(self._parser(new))
        return self._known


class Negatives(NamedTuple):
    """A caption with its hard negatives, and whether training shows images of them.

    Of an image of a negative, the negative is the right text. Without images a model can learn to
    tell negatives by their text alone.
    """

    caption: str
    texts: Sequence[str]
    shown: bool = False

    @classmethod
    def from_view(cls, view: View) -> Negatives:
        """Caption and negatives of a view; for a pair of images, those of the first image alone."""
        own = view.negatives
        if view.kind == PAIR:
            own = own[: len(own) // 2]
        texts = [text for text in own if text is not None]
        shown = bool(view.counterfactuals and view.counterfactuals[0])
        return cls(view.positives[0], texts, shown)


@dataclass(frozen=True, slots=True)
class AskedChanges:
    """Counts of captions by the kind of change in their hard negatives, in one training pass.

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
        """Share of the captions that have a hard negative of a kind of change."""
        return self.asked.get(kind, 0) / self.captions

    def shown_share(self, kind: Change) -> float:
        """Share of the captions with a hard negative of a kind of change and an image of it."""
        return self.shown.get(kind, 0) / self.captions


def asked_changes(rows: Sequence[Negatives], parser: Parser) -> AskedChanges:
    """Count captions by the kind of change that their hard negatives make.

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
