"""The record of a study, as whoever keeps it sees it, and how it is made complete."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import optuna
from optuna.trial import FrozenTrial, TrialState

from compo_pipeline.tuning.failures import Failure, failure, reason

Outcome = Literal["finished", "failed", "killed"]
# The trial's attribute that holds the id of its run, for an objective that logs more into it.
RUN = "run_id"

log = logging.getLogger(__name__)


class Recorder(Protocol):
    """One run for a study, one for each trial within it. Goes to worker processes, so it pickles.

    Runs are named by ids, so that any process can go on where another one ended.
    """

    def open_study(self, name: str, known: str | None) -> str:
        """Open the study's run, or the known one again; its id."""

    def open_trial(self, study: str, number: int) -> str:
        """Open the run of a trial; its id."""

    def point(self, trial: str, step: int, figures: Mapping[str, float]) -> None:
        """Add a point to the curves of a trial."""

    def close_trial(
        self, run: str, trial: FrozenTrial, outcome: Outcome, reason: str | None
    ) -> None:
        """Log parameters, values, constraints and state of a finished trial; end its run."""

    def trials(self, study: str) -> Mapping[int, tuple[str, bool]]:
        """The runs of a study's trials by the trial's number: id, and whether it was closed."""

    def close_study(self, run: str, outcome: Outcome, figures: Mapping[str, float]) -> None:
        """End the study's run."""


class NoRecorder:
    """Keeps no record."""

    def open_study(self, name: str, known: str | None) -> str:
        """No run."""
        return ""

    def open_trial(self, study: str, number: int) -> str:
        """No run."""
        return ""

    def point(self, trial: str, step: int, figures: Mapping[str, float]) -> None:
        """Nothing."""

    def close_trial(
        self, run: str, trial: FrozenTrial, outcome: Outcome, reason: str | None
    ) -> None:
        """Nothing."""

    def trials(self, study: str) -> Mapping[int, tuple[str, bool]]:
        """None."""
        return {}

    def close_study(self, run: str, outcome: Outcome, figures: Mapping[str, float]) -> None:
        """Nothing."""


def open_trial(recorder: Recorder, study: str, trial: optuna.Trial) -> None:
    """Open a trial's run. A record that cannot be written now is made up for by `settle`."""
    try:
        trial.set_user_attr(RUN, recorder.open_trial(study, trial.number))
    except Exception:
        log.exception("trial %d is not recorded now, but at the study's end", trial.number)


def point(recorder: Recorder, run: str | None, step: int, figures: Mapping[str, float]) -> None:
    """Add a point to a trial's curves; a trial does not fail for want of one."""
    if run is None:
        return
    try:
        recorder.point(run, step, figures)
    except Exception:
        log.exception("a point of step %d is missing from the curves of run %s", step, run)


def close_trial(recorder: Recorder, trial: FrozenTrial) -> None:
    """Close a finished trial's run, as `open_trial` opens it."""
    run = trial.user_attrs.get(RUN)
    if run is None:
        return
    try:
        recorder.close_trial(run, trial, outcome_of(trial), reason(trial))
    except Exception:
        log.exception("trial %d is not recorded now, but at the study's end", trial.number)


def settle(recorder: Recorder, run: str, trials: Sequence[FrozenTrial], outcome: Outcome) -> None:
    """Close the study's run when every finished trial has its closed run.

    Workers are killed between a trial's end and its record: what is missing is written now, from
    the trials themselves.
    """
    kept = recorder.trials(run)
    for trial in trials:
        if not trial.state.is_finished():
            continue
        of, closed = kept.get(trial.number) or (recorder.open_trial(run, trial.number), False)
        if not closed:
            recorder.close_trial(of, trial, outcome_of(trial), reason(trial))
    recorder.close_study(run, outcome, counts(trials))


def outcome_of(trial: FrozenTrial) -> Outcome:
    """How a finished trial's run ends."""
    kind = failure(trial)
    if kind is None:
        return "finished"
    return "killed" if kind in (Failure.KILLED, Failure.INTERRUPTED) else "failed"


def counts(trials: Sequence[FrozenTrial]) -> dict[str, float]:
    """How many trials ended in each state, by the state's name."""
    ended = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
    return {
        state.name.lower(): float(sum(trial.state == state for trial in trials)) for state in ended
    }
