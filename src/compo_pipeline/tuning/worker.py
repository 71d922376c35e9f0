"""One worker: takes trials of a study, one after the other, until all have finished."""

from __future__ import annotations

import logging
import multiprocessing
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState

from compo_pipeline.tuning import recording
from compo_pipeline.tuning.attempts import WORKER, mistake, recover, standing
from compo_pipeline.tuning.failures import Failure, Objective, TrialFailed, evaluate, failure
from compo_pipeline.tuning.interrupts import Interrupts
from compo_pipeline.tuning.outcome import measured
from compo_pipeline.tuning.recording import Recorder
from compo_pipeline.tuning.study import Opened, Plan, sampler

# At most so long after the last trial does a worker notice that there is nothing left.
_SECONDS_BETWEEN_LOOKS = 2.0

Watch = Callable[[optuna.Study], None]

log = logging.getLogger(__name__)


class Ended(Enum):
    """Why a worker has no more to do."""

    COMPLETE = "all trials have finished"
    MISTAKEN = "every trial ends with the same kind of configuration error"
    INTERRUPTED = "it was told to stop"


@dataclass(frozen=True)
class Task:
    """What a worker is given.

    Attributes:
        plan: of the study.
        objective: called with each trial; goes to worker processes, so it pickles.
        recorder: of the trials.
        run: id of the study's run.
        before: numbers of the trials that had finished before this run of the study.
    """

    plan: Plan
    objective: Objective
    recorder: Recorder
    run: str
    before: frozenset[int]


class Worker:
    """Works on a study together with others, in this process."""

    def __init__(
        self, task: Task, opened: Opened, interrupts: Interrupts, watch: Watch | None = None
    ) -> None:
        self._task, self._watch = task, watch
        self._study, self._storage, self._lock = opened.study, opened.storage, opened.lock
        self._interrupts = interrupts
        self._current: optuna.Trial | None = None

    def work(self) -> Ended:
        """Run trials until the study is complete, interrupted or pointless.

        A worker without a trial stays while others have some: one of theirs may be lost.
        """
        settings = self._task.plan.settings
        pause = min(_SECONDS_BETWEEN_LOOKS, settings.storage.heartbeat / 2)
        while not self._interrupts.wanted and not _orphaned():
            try:
                self._lock.acquire()
                recover(self._study, self._storage, settings.retries)
                trials = self._study.get_trials(deepcopy=False)
                now = standing(trials, settings.retries)
                if mistake(trials, self._task.before, settings.trials) is not None:
                    return Ended.MISTAKEN
                if now.waiting or now.begun < settings.trials:
                    self._run_one(trials)
                    continue
                if not now.running:
                    return Ended.COMPLETE
            finally:
                self._lock.release()
            time.sleep(pause)
        return Ended.INTERRUPTED

    def _run_one(self, trials: Sequence[FrozenTrial]) -> None:
        """Take one trial and run it. The lock is held until the trial is signed, and no longer.

        Which trial it is (a waiting one, or a new one where there is room for it) is thus decided
        by one worker at a time: there are never more trials than asked for.
        """
        plan = self._task.plan
        begun = sum(trial.state != TrialState.WAITING for trial in trials)
        self._study.sampler = sampler(plan.settings.sampler, plan.seed, begun)
        self._current = None
        try:
            self._study.optimize(
                self._evaluate, n_trials=1, catch=(TrialFailed,), callbacks=[self._close]
            )
        except KeyboardInterrupt:
            if not self._interrupts.wanted:
                raise
        except (ValueError, AssertionError, UpdateFinishedTrialError):
            # Three ways in which Optuna finds that somebody else has finished the trial.
            if not self._taken_for_lost():
                raise
            log.warning("a trial was taken for lost while it ran: its retry counts")

    def _evaluate(self, trial: optuna.Trial) -> float | list[float]:
        self._current = trial
        self._storage.record_heartbeat(trial._trial_id)
        trial.set_user_attr(WORKER, f"{socket.gethostname()}:{os.getpid()}")
        self._lock.release()
        recording.open_trial(self._task.recorder, self._task.run, trial)
        return evaluate(self._task.objective, trial, self._interrupts.allowed)

    def _close(self, study: optuna.Study, trial: FrozenTrial) -> None:
        recording.close_trial(self._task.recorder, trial)
        log.info("trial %d: %s", trial.number, _summary(trial))
        if self._watch is not None:
            self._watch(study)

    def _taken_for_lost(self) -> bool:
        if self._current is None:
            return False
        state = self._storage.get_trial(self._current._trial_id)
        return failure(state) is Failure.KILLED


def _summary(trial: FrozenTrial) -> str:
    if trial.values is None:
        return trial.state.name.lower()
    values = ", ".join(f"{value:.4g}" for value in measured(trial))
    broken = [name for name, value in trial.constraints.items() if value > 0]
    return f"{values}{', against ' if broken else ''}{' and '.join(broken)}"


def _orphaned() -> bool:
    """Whether the process that started this one is gone."""
    parent = multiprocessing.parent_process()
    return parent is not None and not parent.is_alive()
