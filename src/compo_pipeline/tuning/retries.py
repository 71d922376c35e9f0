"""Failed trials: causes of failure, and retries of killed and interrupted trials.

A failed trial has two attributes, a kind of failure and a reason; they are written before the
trial's state, because a finished trial takes no more attributes.

A retry is a new trial with a new number; Optuna's own attributes link it to the first attempt.
Optuna's RetryHeartbeatStaleTrialCallback is not used: it also copies what the lost attempt had
measured. The functions on a study are called under its lock, can be repeated, and complete what a
killed worker began.
"""

from __future__ import annotations

import gc
import logging
import math
import sys
from collections.abc import Callable, Container, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from numbers import Real
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState

from compo_pipeline.configuration import SettingsError
from compo_pipeline.tuning.study import FIRST_ATTEMPT, ORIGIN, Storage, first_attempt

Objective = Callable[[optuna.Trial], float | Sequence[float]]
# A trial and its retries, in the order of their numbers.
Attempts = list[FrozenTrial]

KIND, REASON = "failure", "reason"
# Attribute of a trial whose worker has written a first heartbeat: host and process.
WORKER = "worker"
# Names of system attributes that Optuna's tools know.
_HISTORY, _FIXED = "retry_history", "fixed_params"
_MOST_REASON_CHARACTERS = 500
# After so many configuration errors and no other result, further trials would fail as well.
_MOST_CONFIGURATION_ERRORS = 3

log = logging.getLogger(__name__)


class Failure(StrEnum):
    """Kinds of failure. Killed and interrupted trials are retried, the others are not."""

    KILLED = "killed"
    INTERRUPTED = "interrupted"
    SETTINGS = "settings"
    MEMORY = "out of memory"
    ERROR = "error"


class TrialFailed(Exception):
    """A trial has failed, and its attributes have the reason."""


@dataclass(frozen=True, slots=True)
class TrialCounts:
    """Trials of a study, each counted once with its retries."""

    begun: int
    finished: int
    """Finished trials that will not be retried."""
    waiting: int
    running: int


def failure(trial: FrozenTrial) -> Failure | None:
    """The kind of a trial's failure; None if it has not failed."""
    if trial.state != TrialState.FAIL:
        return None
    return Failure(trial.user_attrs.get(KIND, Failure.ERROR))


def reason(trial: FrozenTrial) -> str | None:
    """The reason of a trial's failure; None if it has not failed."""
    if trial.state != TrialState.FAIL:
        return None
    return str(trial.user_attrs.get(REASON, "unknown"))


def run_objective(
    objective: Objective,
    trial: optuna.Trial,
    interruptible: Callable[[], AbstractContextManager[None]],
) -> float | Sequence[float]:
    """Call the objective; the trial's attributes get the reason of a failure.

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
        kind, why = _classify(error)
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


def count(trials: Sequence[FrozenTrial], retries: int) -> TrialCounts:
    """Count a study's trials; a killed trial is retried at most `retries` times."""
    groups = _grouped(trials)
    last = [attempts[-1].state for attempts in groups]
    return TrialCounts(
        begun=len(groups),
        finished=sum(
            attempts[-1].state.is_finished() and not _owed(attempts, retries) for attempts in groups
        ),
        waiting=last.count(TrialState.WAITING),
        running=last.count(TrialState.RUNNING),
    )


def recover(study: optuna.Study, storage: Storage, retries: int) -> None:
    """Fail the trials of killed workers, and queue the retries of killed and interrupted trials.

    Args:
        study: whose lock is held.
        storage: of the study.
        retries: a killed trial is retried so often at most; an interrupted one always.
    """
    stale = storage.stale(study)
    for attempts in _grouped(study.get_trials(deepcopy=False)):
        trial = attempts[-1]
        # A worker writes its name before it releases the lock: a trial without is abandoned.
        abandoned = trial._trial_id in stale or WORKER not in trial.user_attrs
        if trial.state != TrialState.RUNNING or not abandoned:
            continue
        why = "killed repeatedly" if _kills(attempts) >= retries else "its worker was killed"
        try:
            storage.set_trial_user_attr(trial._trial_id, KIND, Failure.KILLED.value)
            storage.set_trial_user_attr(trial._trial_id, REASON, why)
            storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)
            log.warning("trial %d: %s", trial.number, why)
        except UpdateFinishedTrialError:
            pass  # it was only slow, and has finished
    for attempts in _grouped(study.get_trials(deepcopy=False)):
        if _owed(attempts, retries):
            _enqueue_retry(study, attempts)


def requeue_misconfigured(study: optuna.Study) -> None:
    """Retry trials that failed by a configuration error, if no other trial has finished.

    Called when a study is started again, perhaps with a corrected configuration.
    """
    groups = _grouped(study.get_trials(deepcopy=False))
    finished = [attempts for attempts in groups if attempts[-1].state.is_finished()]
    if all(failure(attempts[-1]) is Failure.SETTINGS for attempts in finished):
        for attempts in finished:
            _enqueue_retry(study, attempts)


def configuration_error(
    trials: Sequence[FrozenTrial], before: Container[int], expected: int
) -> str | None:
    """The configuration error with which every trial fails; None if another trial has finished.

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


def earlier_attempts(trial: FrozenTrial) -> list[int]:
    """Numbers of the attempts before a retry; none for a first attempt."""
    return list(trial.system_attrs.get(_HISTORY, ()))


def _check_value(value: Any, count: int) -> None:
    """Refuse an infinite value too, which Optuna accepts; its reason for others is not stored."""
    values = value if isinstance(value, Sequence) else [value]
    numbers = [each for each in values if isinstance(each, Real) and math.isfinite(each)]
    if len(values) != count or len(numbers) != count:
        raise ValueError(f"expected {count} finite value(s) of the objective, got {value!r}")


def _classify(error: Exception) -> tuple[Failure, str]:
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
    trial.set_user_attr(KIND, kind.value)
    trial.set_user_attr(REASON, why[:_MOST_REASON_CHARACTERS])


def _grouped(trials: Sequence[FrozenTrial]) -> list[Attempts]:
    """Trials with their retries."""
    groups: dict[int, Attempts] = {}
    for trial in sorted(trials, key=lambda each: each.number):
        groups.setdefault(first_attempt(trial), []).append(trial)
    return list(groups.values())


def _kills(attempts: Attempts) -> int:
    return sum(failure(trial) is Failure.KILLED for trial in attempts)


def _owed(attempts: Attempts, retries: int) -> bool:
    """Whether a retry is missing."""
    kind = failure(attempts[-1])
    return kind is Failure.INTERRUPTED or (kind is Failure.KILLED and _kills(attempts) <= retries)


def _enqueue_retry(study: optuna.Study, attempts: Attempts) -> None:
    """Queue a retry with the trial's parameters and nothing that it had measured."""
    lost = attempts[-1]
    system: dict[str, Any] = {
        FIRST_ATTEMPT: attempts[0].number,
        _HISTORY: [trial.number for trial in attempts],
    }
    if _FIXED in lost.system_attrs:
        system[_FIXED] = lost.system_attrs[_FIXED]
    study.add_trial(
        optuna.create_trial(
            state=TrialState.WAITING,
            params=lost.params,
            distributions=lost.distributions,
            user_attrs={name: text for name, text in lost.user_attrs.items() if name == ORIGIN},
            system_attrs=system,
        )
    )
    log.info("trial %d is retried", lost.number)
