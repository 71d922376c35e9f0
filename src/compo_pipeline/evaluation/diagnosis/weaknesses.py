"""Weaknesses of a model by kind of change, with the number of such hard negatives in training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import get_args

from compo_pipeline.benchmarks.foils import NAME as FOILS
from compo_pipeline.evaluation.comparison import Difference, Estimate, Row
from compo_pipeline.evaluation.diagnosis.negatives import AskedChanges
from compo_pipeline.language.changes import Change

LEAST_WRONG = 10.0
"""Per cent of the items of a kind that a model has wrong at least, for a weakness."""
LEAST_CORRECTED = 0.5
"""Share of the base's errors of a kind that a model without a weakness may have corrected."""
LEAST_ASKED = 0.5
"""A kind is seldom asked for below this share of the captions that are asked for the kind that is
asked for most."""

RULE = (
    f"A weakness is missed (accuracy below {100 - LEAST_WRONG:.0f}%, less than "
    f"{LEAST_CORRECTED:.0%} of the base's errors corrected, both by their intervals) and seldom "
    f"asked for (of at most {LEAST_ASKED:.0%} as many captions as the kind that is asked for most)."
)


@dataclass(frozen=True, slots=True)
class KindResult:
    """Result on one kind of foil: accuracies of base and model in per cent, and the difference.

    Attributes:
        kind: name of the kind.
        items: number of items.
        base: accuracy of the base.
        model: accuracy of the model.
        gain: difference of the two; None where the model is the base.
        change: change that the kind makes. None for kinds whose negatives are not counted.
        asked: share of the training captions with a negative of this kind.
    """

    kind: str
    items: int
    base: Estimate
    model: Estimate
    gain: Difference | None
    change: Change | None
    asked: float

    @property
    def corrected(self) -> tuple[float, float, float]:
        """Net share of the base's errors that the model corrects, with its interval."""
        wrong = 100.0 - self.base.value
        if self.gain is None or wrong <= 0:
            return (0.0, 0.0, 0.0) if wrong > 0 else (1.0, 1.0, 1.0)
        return self.gain.value / wrong, self.gain.low / wrong, self.gain.high / wrong

    @property
    def model_errors(self) -> float:
        """Error rate of the model on the items, in per cent."""
        return 100.0 - self.model.value


def foil_rows(rows: Iterable[Row]) -> list[Row]:
    """The rows of a comparison that are about one kind of foil each."""
    return [row for row in rows if row.benchmark == FOILS and not row.averaged and not row.slice]


def kind_result(row: Row, base: str, model: str, asked: AskedChanges) -> KindResult:
    """Build the result of one kind of foil from a row of a comparison.

    Args:
        row: row of a comparison.
        base: key of the base in the row's values.
        model: key of the model.
        asked: changes that the model's training asks for.
    """
    changes: dict[str, Change] = {kind: kind for kind in get_args(Change)}
    change = changes.get(row.name)
    return KindResult(
        row.name,
        row.items,
        row.values[base],
        row.values[model],
        row.difference_of(model) if model != base else None,
        change,
        asked.share(change) if change else 0.0,
    )


def weaknesses(results: Sequence[KindResult], asked: AskedChanges) -> list[KindResult]:
    """Kinds of change that a model misses and its training seldom has negatives of, worst first.

    A kind is missed if the interval of its accuracy is below 90%, and that of the share of the
    base's errors that the model corrects below a half. It is seldom asked for if at most half as
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


def worst(weak: Sequence[KindResult]) -> list[KindResult]:
    """The weaknesses with at least half as many errors as the worst one."""
    return [one for one in weak if 2 * one.model_errors >= weak[0].model_errors]
