"""Failed trials: causes of failure, and retries of killed and interrupted trials.

A trial that fails has two attributes, a kind of failure and a reason; they are written before its
state, because a finished trial takes no more attributes. A failed trial without them was killed.

A retry is a new trial with a new number; Optuna's own attributes link it to the first attempt.
"""

from __future__ import annotations

import copy
import gc
import logging
import math
import sys
from collections.abc import Callable, Container, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from numbers import Real
from typing import Any, cast

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import RetryHeartbeatStaleTrialCallback, fail_stale_trials
from optuna.trial import FrozenTrial, TrialState

from compo_pipeline.configuration.settings import SettingsError
from compo_pipeline.tuning.study import ORIGIN, Storage, experimental

Objective = Callable[[optuna.Trial], float | Sequence[float]]

KIND, REASON = "failure", "reason"
# Attribute of a trial that has begun, after its first heartbeat: its retries if it is killed.
RETRIES_LEFT = "retries_left"
# System attributes that Optuna's tools know: numbers of the earlier attempts of a retry, and what
# a retry has of the trial before it.
_HISTORY = "retry_history"
_KEPT = (_HISTORY, "failed_trial", "fixed_params")
_MOST_REASON_CHARACTERS = 500
# After so many configuration errors and no other result, further trials would fail as well.
_MOST_CONFIGURATION_ERRORS = 3

log = logging.getLogger(__name__)


class Failure(StrEnum):
    """Kinds of a trial's failure; only killed and interrupted trials are retried."""

    KILLED = "killed"
    INTERRUPTED = "interrupted"
    SETTINGS = "settings"
    MEMORY = "out of memory"
    ERROR = "error"


class TrialFailed(Exception):
    """Exception: a trial has failed, and its attributes have the reason."""


@dataclass(frozen=True, slots=True)
class TrialCounts:
    """Numbers of a study's trials by state; a trial and its retries count once."""

    begun: int
    finished: int
    """Finished trials that will not be retried."""
    waiting: int
    running: int


def failure(trial: FrozenTrial) -> Failure | None:
    """Kind of a trial's failure; None if it has not failed."""
    if trial.state != TrialState.FAIL:
        return None
    return Failure(trial.user_attrs.get(KIND, Failure.KILLED))


def reason(trial: FrozenTrial) -> str | None:
    """Reason of a trial's failure as text; None if it has not failed."""
    if trial.state != TrialState.FAIL:
        return None
    killed = "its worker was killed" if _needs_retry(trial) else "killed repeatedly"
    return str(trial.user_attrs.get(REASON, killed))


def run_objective(
    objective: Objective,
    trial: optuna.Trial,
    interruptible: Callable[[], AbstractContextManager[None]],
) -> float | Sequence[float]:
    """Call the objective with a trial; a failure's reason goes to the trial's attributes.

    Args:
        objective: of the study.
        trial: a running trial.
        interruptible: a block within which KeyboardInterrupt may be raised.

    Raises:
        TrialFailed: the objective has raised an exception, or not returned one finite number for
            each direction.
        KeyboardInterrupt: passed on, with its reason written.
        optuna.TrialPruned: passed on.
        UpdateFinishedTrialError: the trial has been failed as stale, and is retried.
    """
    try:
        with interruptible():
            value = objective(trial)
        _check_value(value, len(trial.study.directions))
        return value
    except (optuna.TrialPruned, UpdateFinishedTrialError):
        raise
    except KeyboardInterrupt:
        _set_failure(trial, Failure.INTERRUPTED, "interrupted")
        raise
    except Exception as error:
        kind, why = _kind_and_reason(error)
        traced = error if kind is Failure.ERROR else None
        log.warning("trial %d failed: %s", trial.number, why, exc_info=traced)
    # Outside of the except clause: the error's frames hold the tensors of the failed trial.
    _set_failure(trial, kind, why)
    if kind is Failure.MEMORY:
        gc.collect()
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available():
            torch.cuda.empty_cache()
    raise TrialFailed(why)


def count(trials: Sequence[FrozenTrial]) -> TrialCounts:
    """Count a study's trials by state; a trial and its retries count once."""
    last = _last_attempts(trials)
    states = [trial.state for trial in last]
    return TrialCounts(
        begun=len(last),
        finished=sum(trial.state.is_finished() and not _needs_retry(trial) for trial in last),
        waiting=states.count(TrialState.WAITING),
        running=states.count(TrialState.RUNNING),
    )


def start_heartbeat(trial: optuna.Trial, retries: int) -> None:
    """Write a trial's first heartbeat, and how often to retry the trial if its worker is killed.

    Optuna never fails a running trial without a heartbeat.
    """
    # What Optuna wraps it in has the same method.
    cast("Storage", trial.storage).record_heartbeat(trial._trial_id)
    earlier = earlier_attempts(trial.storage.get_trial(trial._trial_id))
    trials = trial.study.get_trials(deepcopy=False)
    kills = sum(failure(one) is Failure.KILLED for one in trials if one.number in earlier)
    trial.set_user_attr(RETRIES_LEFT, max(0, retries - kills))


def recover(study: optuna.Study, retries: int) -> None:
    """Fail the trials of killed workers, and queue the retries of killed and interrupted trials.

    May be called again, and completes what a killed worker began. Optuna's callback for stale
    trials queues no retry of a trial whose worker was killed before its first heartbeat, or that
    was failed by a worker that was killed before the callback.

    Args:
        study: whose lock is held.
        retries: a killed trial is retried so often at most; an interrupted one always.
    """
    for running in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        # A worker begins its trial before it releases the lock.
        if RETRIES_LEFT not in running.user_attrs:
            start_heartbeat(optuna.Trial(study, running._trial_id), retries)
            study.tell(running.number, state=TrialState.FAIL)
    with experimental():
        fail_stale_trials(study)
    for trial in _last_attempts(study.get_trials(deepcopy=False)):
        if _needs_retry(trial):
            log.warning("trial %d is retried: %s", trial.number, reason(trial))
            _enqueue_retry(study, trial)


def requeue_misconfigured(study: optuna.Study) -> None:
    """Queue retries of trials that failed by a configuration error, if no other trial has finished.

    Called when a study is started again, perhaps with a corrected configuration.
    """
    last = _last_attempts(study.get_trials(deepcopy=False))
    finished = [trial for trial in last if trial.state.is_finished()]
    if all(failure(trial) is Failure.SETTINGS for trial in finished):
        for trial in finished:
            _enqueue_retry(study, trial)


def configuration_error(
    trials: Sequence[FrozenTrial], before: Container[int], expected: int
) -> str | None:
    """Last configuration error as text, if enough trials have ended, all by one; else None.

    Args:
        trials: of the study.
        before: numbers of the trials that had finished before this run of the study.
        expected: number of trials that the study is to have.
    """
    ended = [trial for trial in trials if trial.state.is_finished() and trial.number not in before]
    if len(ended) < min(_MOST_CONFIGURATION_ERRORS, expected):
        return None
    if any(failure(trial) is not Failure.SETTINGS for trial in ended):
        return None
    return reason(ended[-1])


def first_attempt(trial: FrozenTrial) -> int:
    """Number of a trial's first attempt: its own number, unless it is a retry."""
    return [*earlier_attempts(trial), trial.number][0]


def earlier_attempts(trial: FrozenTrial) -> list[int]:
    """Trial numbers of the attempts before a retry; empty for a first attempt."""
    return list(trial.system_attrs.get(_HISTORY, ()))


def _check_value(value: Any, count: int) -> None:
    """Refuse an objective's result unless it is one finite number for each direction."""
    values = value if isinstance(value, Sequence) else [value]
    numbers = [each for each in values if isinstance(each, Real) and math.isfinite(each)]
    if len(values) != count or len(numbers) != count:
        raise ValueError(f"expected {count} finite value(s) of the objective, got {value!r}")


def _kind_and_reason(error: Exception) -> tuple[Failure, str]:
    """Kind of failure that an exception is, and its message on one line."""
    why = " ".join(str(error).split())
    if isinstance(error, SettingsError):
        return Failure.SETTINGS, f"configuration: {why}"
    # torch.OutOfMemoryError is a RuntimeError; so is the error of its CPU allocator.
    messages = ("out of memory", "can't allocate memory")
    if isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(message in why.lower() for message in messages)
    ):
        return Failure.MEMORY, f"out of memory: {why}".removesuffix(": ")
    return Failure.ERROR, f"{type(error).__name__}: {why}".removesuffix(": ")


def _set_failure(trial: optuna.Trial, kind: Failure, why: str) -> None:
    """Store kind and reason of a failure in the trial's attributes."""
    trial.set_user_attr(REASON, why[:_MOST_REASON_CHARACTERS])
    trial.set_user_attr(KIND, kind.value)


def _last_attempts(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """The trials of a study that have not been retried."""
    retried = {number for trial in trials for number in earlier_attempts(trial)}
    return [trial for trial in trials if trial.number not in retried]


def _needs_retry(trial: FrozenTrial) -> bool:
    """Whether a trial needs a retry: interrupted, or killed with retries left."""
    kind = failure(trial)
    left = trial.user_attrs.get(RETRIES_LEFT)
    return kind is Failure.INTERRUPTED or (kind is Failure.KILLED and left != 0)


def _enqueue_retry(study: optuna.Study, trial: FrozenTrial) -> None:
    """Queue a retry with the trial's parameters, but without its measured values."""
    lost = copy.deepcopy(trial)
    lost.user_attrs = {key: value for key, value in lost.user_attrs.items() if key == ORIGIN}
    lost.system_attrs = {key: value for key, value in lost.system_attrs.items() if key in _KEPT}
    with experimental():
        RetryHeartbeatStaleTrialCallback()(study, lost)
