"""A trial and its retries: which are owed one, which are lost, and how far the study has come.

All of this is called under the study's lock, reads the trials as they are and can be repeated:
where a worker dies in the middle, the next one does the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState

from compo_pipeline.tuning.failures import (
    FAILURE,
    KILLED_REPEATEDLY,
    REASON,
    Failure,
    failure,
    reason,
)
from compo_pipeline.tuning.storage import Storage

# Set when a worker has begun with a trial and given its first sign of life.
WORKER = "worker"
# Set in trials that were put into the queue: where their values come from.
ORIGIN = "origin"
# Optuna's own names of these, so that its tools show retries as such.
_FIRST = "failed_trial"
_EARLIER = "retry_history"
_FIXED = "fixed_params"
# So many configuration errors and nothing else: the next trial would end the same way.
_ENOUGH_MISTAKES = 3

log = logging.getLogger(__name__)

Attempts = list[FrozenTrial]


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a study has come; a trial and its retries count as one.

    Attributes:
        begun: all that there are.
        finished: those that will not be tried again.
        waiting: those in the queue.
        running: those that some worker has in hand.
    """

    begun: int
    finished: int
    waiting: int
    running: int


def standing(trials: Sequence[FrozenTrial], retries: int) -> Standing:
    """Count a study's trials."""
    last = [attempts[-1] for attempts in _attempts(trials)]
    return Standing(
        begun=len(last),
        finished=sum(
            attempts[-1].state.is_finished() and not _owed(attempts, retries)
            for attempts in _attempts(trials)
        ),
        waiting=sum(trial.state == TrialState.WAITING for trial in last),
        running=sum(trial.state == TrialState.RUNNING for trial in last),
    )


def recover(study: optuna.Study, storage: Storage, retries: int) -> None:
    """Fail the trials whose worker is gone, and queue what is owed a retry.

    Args:
        study: whose lock is held.
        storage: of the study.
        retries: a killed trial has at most; an interrupted one has as many as it takes.
    """
    stale = set(storage.stale(study.study_name))
    for attempts in _attempts(study.get_trials(deepcopy=False)):
        trial = attempts[-1]
        # Whoever takes a trial signs it before the lock is released: an unsigned one was left.
        unsigned = WORKER not in trial.user_attrs
        if trial.state == TrialState.RUNNING and (trial._trial_id in stale or unsigned):
            _fail(storage, trial, _kills(attempts) >= retries)
    for attempts in _attempts(study.get_trials(deepcopy=False)):
        if _owed(attempts, retries):
            _queue(study, attempts)


def forgive(study: optuna.Study) -> None:
    """Queue anew what failed by a mistaken configuration, where nothing else has come out yet.

    Called where a study is begun again: the configuration has been mended, one hopes.
    """
    attempts = _attempts(study.get_trials(deepcopy=False))
    finished = [each for each in attempts if each[-1].state.is_finished()]
    if all(failure(each[-1]) is Failure.SETTINGS for each in finished):
        for each in finished:
            _queue(study, each)


def mistake(trials: Sequence[FrozenTrial], before: Container[int], expected: int) -> str | None:
    """The configuration error that every trial ends with; None where trials get on.

    Args:
        trials: of the study.
        before: numbers of the trials that had finished before this run of it.
        expected: trials that the study shall have.
    """
    ended = [each for each in trials if each.state.is_finished() and each.number not in before]
    if len(ended) < min(_ENOUGH_MISTAKES, expected):
        return None
    if any(failure(trial) is not Failure.SETTINGS for trial in ended):
        return None
    return reason(ended[-1])


def first(trial: FrozenTrial) -> int:
    """The number of a trial, or of the one that it is a retry of: what all attempts share."""
    return int(trial.system_attrs.get(_FIRST, trial.number))


def _attempts(trials: Sequence[FrozenTrial]) -> list[Attempts]:
    """Trials with their retries, each in the order of attempts."""
    grouped: dict[int, Attempts] = {}
    for trial in sorted(trials, key=lambda each: each.number):
        grouped.setdefault(first(trial), []).append(trial)
    return list(grouped.values())


def _kills(attempts: Attempts) -> int:
    return sum(failure(trial) is Failure.KILLED for trial in attempts)


def _owed(attempts: Attempts, retries: int) -> bool:
    kind = failure(attempts[-1])
    if kind is Failure.KILLED:
        return _kills(attempts) <= retries
    return kind is Failure.INTERRUPTED


def _fail(storage: Storage, trial: FrozenTrial, finally_: bool) -> None:
    why = KILLED_REPEATEDLY if finally_ else "its worker was killed"
    try:
        storage.set_trial_user_attr(trial._trial_id, FAILURE, Failure.KILLED.value)
        storage.set_trial_user_attr(trial._trial_id, REASON, why)
        storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)
    except UpdateFinishedTrialError:
        return  # it was only slow, and is done
    log.warning("trial %d: %s", trial.number, why)


def _queue(study: optuna.Study, attempts: Attempts) -> None:
    """Put a trial back into the queue, with its parameters and nothing that was measured."""
    lost = attempts[-1]
    system: dict[str, Any] = {
        _FIRST: attempts[0].number,
        _EARLIER: [trial.number for trial in attempts],
    }
    if _FIXED in lost.system_attrs:
        system[_FIXED] = lost.system_attrs[_FIXED]
    origin = lost.user_attrs.get(ORIGIN)
    study.add_trial(
        optuna.create_trial(
            state=TrialState.WAITING,
            params=lost.params,
            distributions=lost.distributions,
            user_attrs={} if origin is None else {ORIGIN: origin},
            system_attrs=system,
        )
    )
    log.info("trial %d is tried again", lost.number)
