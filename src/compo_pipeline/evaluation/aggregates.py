"""The papers' means over several benchmarks, of the models of a comparison."""

from __future__ import annotations

from dataclasses import dataclass

from compo_pipeline.benchmarks.averages import Key
from compo_pipeline.benchmarks.suites import SUITES, Aggregate, Member, aggregates_of
from compo_pipeline.evaluation.evaluate import Comparison
from compo_pipeline.evaluation.published import is_partial


@dataclass(frozen=True, slots=True)
class AggregateRow:
    """One mean over benchmarks from a paper's tables, with its value for each model.

    Attributes:
        label: its name.
        source: where the paper has it.
        values: per cent; none if a member is missing.
        missing: members that were not run on the official files.
        partial: members that were not scored as in the paper: then it is not the paper's figure.
    """

    label: str
    source: str
    values: tuple[float, ...]
    missing: tuple[str, ...]
    partial: tuple[str, ...] = ()

    @property
    def remark(self) -> str:
        """Why the mean cannot be compared with the paper's value; empty if it can be compared."""
        if self.missing:
            return f"not complete: {', '.join(self.missing)} not run"
        if self.partial:
            return f"not the paper's figure: {', '.join(self.partial)} not scored as there"
        return ""


def aggregate_rows(comparison: Comparison) -> list[AggregateRow]:
    """Means over benchmarks of the comparison's suite; without a suite, all complete means.

    A mean is complete if all of its members were scored. Benchmarks whose files are not the
    official ones are members of none.
    """
    rows = [row for row in comparison.rows if row.benchmark not in comparison.titles]
    values = {name: {row.key: row.values[name].value for row in rows} for name in comparison.models}
    items, deviating = {row.key: row.items for row in rows}, partial_metrics(comparison)
    found = []
    for one in aggregates_of(comparison.suite):
        missing = [member for member in one.members if not items.keys() >= set(member)]
        partial = [
            member
            for member in one.members
            if member not in missing
            and any(key in deviating or one.items not in (None, items[key]) for key in member)
        ]
        if comparison.suite in SUITES or not missing:
            means = () if missing else tuple(map(one.mean, values.values()))
            found.append(
                AggregateRow(
                    one.label,
                    one.source,
                    means,
                    _member_names(one, missing),
                    _member_names(one, partial),
                )
            )
    return found


def _member_names(one: Aggregate, members: list[Member]) -> tuple[str, ...]:
    """Display names, without repeats, of given metrics (members) that a mean averages."""
    return tuple(dict.fromkeys(map(one.member_name, members)))


def partial_metrics(comparison: Comparison) -> set[Key]:
    """Keys of the metrics that were not scored on all official items or by the official rule."""
    return {
        row.key
        for row in comparison.rows
        if row.benchmark in comparison.deviating or is_partial(row, row.benchmark)
    }
