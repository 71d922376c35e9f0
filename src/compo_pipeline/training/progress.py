"""How far a run has come: its step, the points of its curves, what its batches counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Point = dict[str, float]


@dataclass
class Progress:
    """How far a run has come; saved with the weights.

    Attributes:
        step: steps done.
        curve: points of the loss curves.
        counts: what batches reported (rows, rows without a negative, truncated texts, ...).
        finished: no step is left, or early stopping ended the run.
    """

    step: int = 0
    curve: list[Point] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    finished: bool = False
    _sums: Counter[str] = field(default_factory=Counter)
    _times: Counter[str] = field(default_factory=Counter)

    def note(self, losses: Mapping[str, float], counts: Mapping[str, int]) -> None:
        """Take in a step."""
        self.step += 1
        self.counts.update(counts)
        self._sums.update(losses)
        self._times.update(losses.keys())

    def close(self, **others: float) -> Point:
        """A new point of the curves: means since the last one."""
        means = {name: self._sums[name] / self._times[name] for name in self._sums}
        self._sums.clear()
        self._times.clear()
        self.curve.append({"step": self.step, **others, **means})
        return self.curve[-1]

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready; sums of an unfinished window included, so that curves resume exactly."""
        windows = {"sums": dict(self._sums), "times": dict(self._times)}
        return {
            "step": self.step,
            "curve": self.curve,
            "counts": dict(self.counts),
            "finished": self.finished,
            **windows,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Progress:
        """What `as_dict` gave."""
        return cls(
            values["step"],
            list(values["curve"]),
            Counter(values["counts"]),
            values["finished"],
            Counter(values["sums"]),
            Counter(values["times"]),
        )
