"""A study as it runs: a few lines that stay in place on a terminal, log lines elsewhere."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import rich
from optuna import Study
from optuna.trial import FrozenTrial, TrialState
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from compo_pipeline.tuning.attempts import standing
from compo_pipeline.tuning.failures import reason
from compo_pipeline.tuning.outcome import best, described, feasible
from compo_pipeline.tuning.words import duration, labels, shown

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Status:
    """How a study stands.

    Attributes:
        expected: trials that shall finish.
        finished: those that will not be tried again, whatever they ended with.
        running: trials in hand.
        stopped: trials that were stopped early.
        infeasible: trials that ran to their end and break a constraint.
        failed: trials that failed; a retry of theirs may have done better.
        last: why the last one failed.
        best: the best feasible trial, in words, and its parameters; empty where there is none.
        values: of the best trial.
    """

    expected: int
    finished: int
    running: int
    stopped: int
    infeasible: int
    failed: int
    last: str
    best: str
    values: str


def status(study: Study, expected: int, retries: int) -> Status:
    """Read off how a study stands.

    Args:
        study: in whatever state.
        expected: trials that shall finish.
        retries: that a killed trial has.
    """
    trials = study.get_trials(deepcopy=False)
    now, top = standing(trials, retries), best(study)
    failed = _in(trials, TrialState.FAIL)
    short = labels(name for trial in trials for name in trial.params)
    return Status(
        expected=max(expected, now.begun),
        finished=now.finished,
        running=now.running,
        stopped=len(_in(trials, TrialState.PRUNED)),
        infeasible=len(_in(trials, TrialState.COMPLETE)) - len(feasible(study)),
        failed=len(failed),
        last=f"trial {failed[-1].number}: {reason(failed[-1])}" if failed else "",
        best="" if top is None else f"trial {top.number}, {described(study, top)}",
        values="" if top is None else ", ".join(
            f"{short[name]}={shown(value)}" for name, value in top.params.items()
        ),
    )  # fmt: skip


class Board:
    """Shows a study while it runs; `show` is the `watch` of `workers.run`.

    Args:
        expected: trials that shall finish.
        retries: that a killed trial has.
        console: where to; the one of the log by default, so that its lines go above.
        clock: seconds that pass.
    """

    def __init__(
        self,
        expected: int,
        retries: int,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._expected, self._retries, self._clock = expected, retries, clock
        self._console = console or rich.get_console()
        self._live: Live | None = None
        self._said: Status | None = None
        self._began: tuple[float, int] | None = None

    def __enter__(self) -> Board:
        """Take a place on the terminal, where there is one."""
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Leave the last lines as they stand."""
        if self._live is not None:
            self._live.stop()

    def show(self, study: Study) -> None:
        """Show how the study stands now."""
        now = status(study, self._expected, self._retries)
        left = self._left(now)
        if self._live is not None:
            self._live.update(_rendered(study.study_name, now, left), refresh=True)
        elif self._said is None or (now.finished, now.failed) != (
            self._said.finished,
            self._said.failed,
        ):
            new_best = self._said is None or self._said.best != now.best
            log.info("%s", _line(now, left, new_best=new_best))
        self._said = now

    def _left(self, now: Status) -> float | None:
        """Seconds that the rest will take at the pace since the first look."""
        seconds = self._clock()
        if self._began is None:
            self._began = (seconds, now.finished)
        began, finished = self._began
        if now.finished >= now.expected:
            return 0.0
        if now.finished == finished:
            return None
        return (seconds - began) / (now.finished - finished) * (now.expected - now.finished)


def _in(trials: list[FrozenTrial], state: TrialState) -> list[FrozenTrial]:
    return [trial for trial in trials if trial.state == state]


def _rendered(name: str, now: Status, left: float | None) -> RenderableType:
    ahead = f"about {duration(left)} left" if left else ""
    running = f"{now.running} running" if now.running else ""
    counts = filter(None, (f"{now.finished} of {now.expected} trials", running, ahead))
    way = Table.grid(padding=(0, 2))
    bar = ProgressBar(total=now.expected, completed=now.finished, width=24)
    way.add_row(bar, Text("  ".join(counts), no_wrap=True, overflow="ellipsis"))
    rows = Table.grid(padding=(0, 2))
    rows.add_row(Text("best", style="dim"), Text(now.best or "none yet", style="bold green"))
    if now.best:
        rows.add_row("", Text(now.values, style="green"))
    if others := _others(now):
        rows.add_row(Text("others", style="dim"), Text(", ".join(others)))
    if now.last:
        why = Text(now.last, style="red", no_wrap=True, overflow="ellipsis")
        rows.add_row(Text("failed", style="dim"), why)
    return Group(Text(name, style="bold"), way, rows)


def _line(now: Status, left: float | None, *, new_best: bool) -> str:
    parts = [f"{now.finished} of {now.expected} trials", *_others(now)]
    if now.last:
        parts[-1] += f" (the last: {now.last})"
    if now.best:
        parts.append(f"best: {now.best}" + (f" with {now.values}" if new_best else ""))
    if left:
        parts.append(f"about {duration(left)} left")
    return "; ".join(parts)


def _others(now: Status) -> list[str]:
    counted = {
        "stopped early": now.stopped,
        "against a constraint": now.infeasible,
        "failed": now.failed,
    }
    return [f"{count} {words}" for words, count in counted.items() if count]
