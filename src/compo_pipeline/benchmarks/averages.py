"""Averages over subtasks: nested means, weighted by part or by item."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Key = tuple[str, str, str]
"""(benchmark, metric, subtask), as in the scores table."""

ALL = "all"
"""Name of the only subtask, or of the average over the items of all subtasks."""


def set_of(name: str) -> str:
    """Name of the set that a subtask belongs to: the part before "/", or the whole name."""
    return name.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Mean:
    """Definition of a mean over subtasks or over other means, weighted equally or by items.

    Without parts it is of every subtask.

    Each part weighs the same; with `by_items`, as much as it has items. A set of subtasks
    (`<set>/<part>`) is named as one.
    """

    parts: tuple[str | Mean, ...]
    by_items: bool = False

    @property
    def subtasks(self) -> tuple[str, ...]:
        """Names of all subtasks that the mean averages, directly or through other means."""
        names = [(part,) if isinstance(part, str) else part.subtasks for part in self.parts]
        return tuple(name for part in names for name in part)

    def resolve(self, sets: Mapping[str, Mean]) -> Mean:
        """The same mean, in which each name of a set is replaced by the set's own mean."""
        parts = self.parts or tuple(sets)
        whole = (sets[part] if isinstance(part, str) else part.resolve(sets) for part in parts)
        return Mean(tuple(whole), self.by_items)

    def weights(self, items: Mapping[str, int]) -> dict[str, float]:
        """Weight of each subtask in the mean.

        The weights sum to 1.

        Args:
            items: number of items of each subtask.
        """
        found: dict[str, float] = defaultdict(float)
        for part in self.parts:
            shares = {part: 1.0} if isinstance(part, str) else part.weights(items)
            size = sum(items[name] for name in shares) if self.by_items else 1
            for name, share in shares.items():
                found[name] += size * share
        total = sum(found.values()) or 1.0
        return {name: weight / total for name, weight in found.items()}


def mean_of_set(subtasks: Iterable[str], depth: int = 1) -> Mean:
    """Equally weighted mean over a set's parts.

    A part with further parts is a mean itself.

    Args:
        subtasks: names of one set, `<set>/<part>` or `<set>/<part>/<further part>`.
        depth: depth of the parts, 1 for those of the set itself.
    """
    parts: dict[str, list[str]] = {}
    for name in subtasks:
        parts.setdefault("/".join(name.split("/")[: depth + 1]), []).append(name)
    return Mean(
        tuple(
            part if names == [part] else mean_of_set(names, depth + 1)
            for part, names in parts.items()
        )
    )
