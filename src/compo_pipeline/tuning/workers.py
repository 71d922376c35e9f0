"""Workers: they run the trials of a study in this process or in several.

More workers may be started on the same study elsewhere at any time, with `run` as well. Optuna's
MaxTrialsCallback stops its own process only; here the lock limits the trials of all together.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState

from compo_pipeline.configuration import SettingsError
from compo_pipeline.tuning.record import Outcome, TuningRecord
from compo_pipeline.tuning.retries import (
    WORKER,
    Failure,
    Objective,
    TrialFailed,
    configuration_error,
    count,
    failure,
    reason,
    recover,
    requeue_misconfigured,
    run_objective,
)
from compo_pipeline.tuning.study import RUN_ID, SharedStudy, StudyPlan, open_study, sampler

OnProgress = Callable[[optuna.Study], None]

# A worker without a trial looks for one this often, or twice per heartbeat.
_SECONDS_BETWEEN_LOOKS = 2.0
_SECONDS_BETWEEN_CHECKS = 0.2
_SECONDS_TO_STOP = 30.0
# Exit code of an interrupted worker process.
_INTERRUPTED = 75

log = logging.getLogger(__name__)


def run(
    plan: StudyPlan,
    objective: Objective,
    recorder: TuningRecord,
    prepare: Callable[[], None] | None = None,
    on_progress: OnProgress | None = None,
) -> optuna.Study:
    """Run a study, or the rest of it, until all trials have finished.

    May be called on several machines at once, and again after an interruption.

    Args:
        plan: the study.
        objective: called with each trial; pickled to worker processes.
        recorder: of the study and its trials.
        prepare: called first in each worker process (logging, threads, devices).
        on_progress: called with the study from time to time; with one worker, after each trial.

    Raises:
        SettingsError: the storage or study cannot be used, or every trial ended with a
            configuration error.
        KeyboardInterrupt: stopped by Ctrl-C or SIGTERM; the same call continues the study.
        RuntimeError: the workers ended, or were killed repeatedly, before the study was complete.
    """
    with Interrupts() as interrupts:
        shared = open_study(plan)
        task = _task(plan, objective, recorder, shared)
        outcome: Outcome = "failed"
        try:
            if plan.settings.workers in (None, 1):
                outcome = Worker(task, shared, interrupts, on_progress).work()
            else:
                outcome = _Processes(task, shared, prepare).work(interrupts, on_progress)
        except RuntimeError:
            _close_runs(task, shared, outcome)
            raise
        _close_runs(task, shared, outcome)
    if outcome == "killed":
        raise KeyboardInterrupt
    if outcome == "failed":
        why = configuration_error(shared.study.trials, task.before, plan.settings.trials)
        raise SettingsError(f"the study '{plan.settings.name}' was stopped: {why}")
    return shared.study


class Interrupts:
    """Delays Ctrl-C and SIGTERM to where an interruption is allowed.

    Only the first signal counts: a terminal sends it to a worker twice. Outside of the main
    thread, where Python handles no signals, nothing is changed.
    """

    def __init__(self) -> None:
        self.requested = False
        self._allowed = False
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        """Install the signal handlers."""
        if threading.current_thread() is threading.main_thread():
            for each in (signal.SIGINT, signal.SIGTERM):
                self._handlers[each] = signal.signal(each, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        """Restore the earlier handlers."""
        for each, handler in self._handlers.items():
            signal.signal(each, handler)

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Raise KeyboardInterrupt for a signal within the block or before it."""
        self._allowed = True
        try:
            if self.requested:
                raise KeyboardInterrupt
            yield
        finally:
            self._allowed = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        first, self.requested = not self.requested, True
        if first and self._allowed:
            raise KeyboardInterrupt


@dataclass(frozen=True)
class WorkerTask:
    """Inputs of a worker; pickled to worker processes."""

    plan: StudyPlan
    objective: Objective
    recorder: TuningRecord
    run: str
    """Id of the study's run."""
    before: frozenset[int]
    """Numbers of the trials that had finished before this run of the study."""


class Worker:
    """Runs trials of a study in this process, together with other workers."""

    def __init__(
        self,
        task: WorkerTask,
        shared: SharedStudy,
        interrupts: Interrupts,
        on_progress: OnProgress | None = None,
    ) -> None:
        self._task, self._shared, self._interrupts = task, shared, interrupts
        self._study, self._on_progress = shared.study, on_progress
        self._current: optuna.Trial | None = None

    def work(self) -> Outcome:
        """Run trials until the study is complete or interrupted, or every trial is misconfigured.

        A worker without a trial waits while others have one, for it may have to be retried.
        """
        settings = self._task.plan.settings
        while not self._interrupts.requested and not _orphaned():
            try:
                self._shared.lock.acquire()
                recover(self._study, self._shared.storage, settings.retries)
                trials = self._study.get_trials(deepcopy=False)
                counts = count(trials, settings.retries)
                if configuration_error(trials, self._task.before, settings.trials) is not None:
                    return "failed"
                if counts.waiting or counts.begun < settings.trials:
                    self._run_one(trials)
                    continue
                if not counts.running:
                    return "finished"
            finally:
                self._shared.lock.release()
            time.sleep(min(_SECONDS_BETWEEN_LOOKS, settings.storage.heartbeat / 2))
        return "killed"

    def _run_one(self, trials: Sequence[FrozenTrial]) -> None:
        """Take one trial and run it; the lock is held until the trial has this worker's name.

        One worker at a time thus takes a waiting trial, or a new one if one is missing.
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
            if not self._interrupts.requested:
                raise
        except (ValueError, AssertionError, UpdateFinishedTrialError):
            # Three ways in which Optuna reports that another worker has finished the trial.
            if not self._failed_as_stale():
                raise
            log.warning("a trial was failed as stale while it ran: its retry counts")

    def _evaluate(self, trial: optuna.Trial) -> float | Sequence[float]:
        self._current = trial
        self._shared.storage.record_heartbeat(trial._trial_id)
        trial.set_user_attr(WORKER, f"{socket.gethostname()}:{os.getpid()}")
        self._shared.lock.release()
        with _recorded_later(trial.number):
            run_id = self._task.recorder.open_trial(self._task.run, trial.number)
            trial.set_user_attr(RUN_ID, run_id)
        return run_objective(self._task.objective, trial, self._interrupts.allowed)

    def _close(self, study: optuna.Study, trial: FrozenTrial) -> None:
        if RUN_ID in trial.user_attrs:
            with _recorded_later(trial.number):
                _close_trial(self._task.recorder, trial.user_attrs[RUN_ID], trial)
        log.info("trial %d: %s", trial.number, trial.state.name.lower())
        if self._on_progress is not None:
            self._on_progress(study)

    def _failed_as_stale(self) -> bool:
        if self._current is None:
            return False
        trial = self._shared.storage.get_trial(self._current._trial_id)
        return failure(trial) is Failure.KILLED


class _Processes:
    """Worker processes; a killed one is replaced."""

    def __init__(
        self, task: WorkerTask, shared: SharedStudy, prepare: Callable[[], None] | None
    ) -> None:
        self._task, self._shared, self._prepare = task, shared, prepare
        settings = task.plan.settings
        # As many replacements as if every attempt at every trial killed its worker.
        self._replacements = settings.trials * (settings.retries + 1)
        self._processes: list[BaseProcess] = []

    def work(self, interrupts: Interrupts, on_progress: OnProgress | None) -> Outcome:
        """Keep the processes running until the study has ended or is interrupted."""
        self._processes = [self._start() for _ in range(self._task.plan.settings.workers or 1)]
        try:
            reported = time.monotonic()
            while self._processes and not interrupts.requested:
                self._replace_killed()
                if on_progress and time.monotonic() - reported > _SECONDS_BETWEEN_LOOKS:
                    on_progress(self._shared.study)
                    reported = time.monotonic()
                time.sleep(_SECONDS_BETWEEN_CHECKS)
        finally:
            self._stop()
        if on_progress is not None:
            on_progress(self._shared.study)
        return "killed" if interrupts.requested else self._outcome()

    def _start(self) -> BaseProcess:
        # Forked processes would share CUDA, threads and database connections with this one.
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=_work_in_process, args=(self._task, self._prepare))
        process.start()
        return process

    def _replace_killed(self) -> None:
        """Replace killed processes; one that ended by itself is complete, or has an error."""
        for place, process in enumerate(self._processes):
            code = process.exitcode
            if code is None or code == 0:
                continue
            if code > 0 and code != _INTERRUPTED:
                log.error("worker %s ended with an error; the others continue", process.pid)
                continue
            log.warning("worker %s was killed (exit code %s)", process.pid, code)
            if self._replacements == 0:
                raise RuntimeError(
                    "workers keep being killed; is there enough memory for "
                    f"{len(self._processes)} of them?"
                )
            self._replacements -= 1
            self._processes[place] = self._start()
        self._processes = [each for each in self._processes if each.exitcode is None]

    def _stop(self) -> None:
        for process in self._processes:
            process.terminate()
        until = time.monotonic() + _SECONDS_TO_STOP
        for process in self._processes:
            process.join(max(0.0, until - time.monotonic()))
            if process.exitcode is None:
                process.kill()
                process.join()

    def _outcome(self) -> Outcome:
        settings = self._task.plan.settings
        trials = self._shared.study.get_trials(deepcopy=False)
        if configuration_error(trials, self._task.before, settings.trials) is not None:
            return "failed"
        counts = count(trials, settings.retries)
        if counts.finished < max(counts.begun, settings.trials):
            raise RuntimeError(
                f"all workers ended with an error after {counts.finished} of {settings.trials} "
                "trials; the log has the errors, and the same command continues the study"
            )
        return "finished"


def _work_in_process(task: WorkerTask, prepare: Callable[[], None] | None) -> None:
    """Main function of a worker process."""
    with Interrupts() as interrupts:
        if prepare is not None:
            prepare()
        outcome = Worker(task, open_study(task.plan), interrupts).work()
    if outcome == "killed":
        raise SystemExit(_INTERRUPTED)


def _orphaned() -> bool:
    """Whether the process that started this one has ended."""
    parent = multiprocessing.parent_process()
    return parent is not None and not parent.is_alive()


def _task(
    plan: StudyPlan, objective: Objective, recorder: TuningRecord, shared: SharedStudy
) -> WorkerTask:
    """Recover the study's trials and open its run."""
    study, settings = shared.study, plan.settings
    with shared.lock:
        recover(study, shared.storage, settings.retries)
        requeue_misconfigured(study)
        trials = study.get_trials(deepcopy=False)
        run_id = recorder.open_study(settings.name, study.user_attrs.get(RUN_ID))
        study.set_user_attr(RUN_ID, run_id)
    log.info(
        "study '%s' in %s: %d of %d trials have finished",
        settings.name,
        shared.storage.shown_url,
        count(trials, settings.retries).finished,
        settings.trials,
    )
    before = frozenset(trial.number for trial in trials if trial.state.is_finished())
    return WorkerTask(plan, objective, recorder, run_id, before)


@contextmanager
def _recorded_later(number: int) -> Iterator[None]:
    """Log that the record cannot be reached; the runs are completed at the study's end."""
    try:
        yield
    except SettingsError as error:
        log.warning("trial %d is recorded at the study's end: %s", number, error)


def _close_trial(recorder: TuningRecord, run_id: str, trial: FrozenTrial) -> None:
    kind = failure(trial)
    outcome: Outcome = "finished" if kind is None else "failed"
    if kind in (Failure.KILLED, Failure.INTERRUPTED):
        outcome = "killed"
    recorder.close_trial(run_id, trial, outcome, reason(trial))


def _close_runs(task: WorkerTask, shared: SharedStudy, outcome: Outcome) -> None:
    """Close the runs of all finished trials and of the study, unless other workers have trials.

    A worker may have been killed between a trial's end and its record.
    """
    with shared.lock:
        trials = shared.study.get_trials(deepcopy=False)
        if count(trials, task.plan.settings.retries).running:
            return
        recorded = task.recorder.trials(task.run)
        ended = [trial for trial in trials if trial.state.is_finished()]
        for trial in ended:
            run_id, closed = recorded.get(trial.number) or (
                task.recorder.open_trial(task.run, trial.number),
                False,
            )
            if not closed:
                _close_trial(task.recorder, run_id, trial)
        states = [trial.state for trial in ended]
        figures = {
            state.name.lower(): float(states.count(state))
            for state in (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
        }
        task.recorder.close_study(task.run, outcome, figures)
