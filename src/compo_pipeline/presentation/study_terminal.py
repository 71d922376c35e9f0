"""A running study in a few lines: in place on a terminal, as log lines elsewhere."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import rich
from optuna import Study
from optuna.trial import FrozenTrial, TrialState
from rich.console import Console, Group
from rich.live import Live
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from compo_pipeline.tuning.results import (
    best,
    describe,
    duration,
    feasible,
    format_value,
    short_names,
)
from compo_pipeline.tuning.retries import count, reason

# The remaining time is estimated from all trials of this run, which may take days.
_ESTIMATE_SECONDS = 1e6

log = logging.getLogger(__name__)


class StudyDisplay:
    """Shows the progress of a running Optuna study in the terminal, or as log lines.

    Args:
        expected: number of trials that the study is to have.
        console: the one of the log by default, so that log lines appear above the display.
        clock: seconds that pass.
    """

    def __init__(
        self,
        expected: int,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._expected = expected
        self._console = console or rich.get_console()
        self._progress = Progress(
            *Progress.get_default_columns()[1:2],
            MofNCompleteColumn(),
            TextColumn("trials"),
            TimeRemainingColumn(),
            console=self._console,
            speed_estimate_period=_ESTIMATE_SECONDS,
            get_time=clock,
        )
        self._live = Live(console=self._console, auto_refresh=False)
        self._last: tuple[object, ...] = ()

    def __enter__(self) -> StudyDisplay:
        """Start the display, on a terminal."""
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Leave the last lines on the terminal."""
        self._live.stop()

    def show(self, study: Study) -> None:
        """Update the display with the study's present counts and best trial."""
        trials = study.get_trials(deepcopy=False)
        counts = count(trials)
        expected = max(self._expected, counts.begun)
        if not self._progress.tasks:
            self._progress.add_task("", total=expected, completed=counts.finished)
        self._progress.update(self._progress.task_ids[0], total=expected, completed=counts.finished)
        top = best(study)
        lines = [] if top is None else [f"best: {_trial_line(study, top)}"]
        lines += [others] if (others := _other_counts(study, trials)) else []
        if self._console.is_terminal:
            texts = [Text(line, no_wrap=True, overflow="ellipsis") for line in lines]
            self._live.update(Group(study.study_name, self._progress, *texts), refresh=True)
        elif self._last != (counts.finished, others):
            left = self._progress.tasks[0].time_remaining
            lines += [f"about {duration(left)} left"] if left else []
            log.info("%s", "; ".join([f"{counts.finished} of {expected} trials", *lines]))
        self._last = (counts.finished, others)


def _trial_line(study: Study, trial: FrozenTrial) -> str:
    """A trial's number, result and parameter values as one line of text."""
    names = short_names(trial.params)
    values = ", ".join(f"{names[key]}={format_value(value)}" for key, value in trial.params.items())
    return f"trial {trial.number}, {describe(study, trial)} with {values}"


def _other_counts(study: Study, trials: list[FrozenTrial]) -> str:
    """Counts of pruned, infeasible and failed trials as text, with the last failure's reason."""
    states = [trial.state for trial in trials]
    failed = [trial for trial in trials if trial.state == TrialState.FAIL]
    counts = {
        "pruned": states.count(TrialState.PRUNED),
        "infeasible": states.count(TrialState.COMPLETE) - len(feasible(study)),
        "failed": len(failed),
    }
    text = ", ".join(f"{number} {words}" for words, number in counts.items() if number)
    if failed:
        text += f" (the last: trial {failed[-1].number}: {reason(failed[-1])})"
    return text
