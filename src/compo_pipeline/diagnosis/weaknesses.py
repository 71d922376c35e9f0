"""Which kinds of change a model misses, and whether its training asked for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import get_args

from compo_pipeline.benchmarks.foils import NAME as FOILS
from compo_pipeline.diagnosis.negatives import AskedChanges
from compo_pipeline.evaluation.comparison import Difference, Estimate, Row
from compo_pipeline.language.changes import Change

LEAST_WRONG = 20.0
"""Per cent of the items of a kind that a model has wrong at least, for a weakness."""
LEAST_CORRECTED = 0.5
"""Share of the base's errors of a kind that a model without a weakness may have corrected."""
LEAST_ASKED = 0.5
"""A kind is seldom asked for below this share of the captions that are asked for the kind that is
asked for most."""


@dataclass(frozen=True, slots=True)
class KindResult:
    """A model on the items of a kind: accuracies in per cent, the difference from the base.

    `change` is None for a kind of items whose negatives are not counted.
    """

    kind: str
    label: str
    items: int
    base: Estimate
    model: Estimate
    gain: Difference
    change: Change | None
    asked: float
    """Share of the training captions with a negative of this kind."""

    @property
    def corrected(self) -> tuple[float, float, float]:
        """Share of the base's errors that the model corrects, net of new ones, and its interval."""
        wrong = 100.0 - self.base.value
        if wrong <= 0:
            return 1.0, 1.0, 1.0
        return self.gain.value / wrong, self.gain.low / wrong, self.gain.high / wrong


def kind_results(
    rows: Iterable[Row], base: str, model: str, asked: AskedChanges
) -> list[KindResult]:
    """Results by kind of the foils, in the order of the rows.

    Args:
        rows: of a comparison.
        base: key of the base in the rows' values.
        model: key of the model.
        asked: by its training.
    """
    changes: dict[str, Change] = {kind: kind for kind in get_args(Change)}
    found = []
    for row in rows:
        difference = row.of(model)
        if row.benchmark == FOILS and not row.averaged and not row.slice and difference:
            change = changes.get(row.name)
            share = asked.share(change) if change else 0.0
            values = row.values[base], row.values[model]
            found.append(
                KindResult(row.name, row.label, row.items, *values, difference, change, share)
            )
    return found


def weaknesses(results: Sequence[KindResult], asked: AskedChanges) -> list[KindResult]:
    """The kinds that a model misses and that its training seldom asks for, the worst first.

    A kind is missed if the interval of its accuracy is below 80%, and that of the share of the
    base's errors that the model corrects below a half. It is seldom asked for if less than half as
    many captions have such a negative as have one of the kind that most captions have.
    """
    most = max((asked.share(kind) for kind in get_args(Change)), default=0.0)
    found = [
        one
        for one in results
        if one.change is not None
        and one.model.high < 100.0 - LEAST_WRONG
        and one.corrected[2] < LEAST_CORRECTED
        and one.asked <= LEAST_ASKED * most
    ]
    return sorted(found, key=lambda one: one.model.value)
