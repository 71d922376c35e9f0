"""Workers: they run the trials of a study in this process or in several.

More workers may be started on the same study elsewhere at any time, with `run` as well. A worker
takes its next trial under the study's lock, and first recovers what killed workers have left:
Optuna's own callbacks would lose some retries, and begin up to a trial per worker too many.
"""

from __future__ import annotations

import logging
import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from types import FrameType

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState

from compo_pipeline.configuration.settings import SettingsError, masked
from compo_pipeline.tuning.record import Outcome, TuningRecord
from compo_pipeline.tuning.retries import (
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
    start_heartbeat,
)
from compo_pipeline.tuning.study import RUN_ID, StudyPlan, open_study, sampler

OnProgress = Callable[[optuna.Study], None]

# A worker without a trial looks for one this often, or twice per heartbeat.
_SECONDS_BETWEEN_LOOKS = 2.0
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
    """Run an Optuna study, or the rest of it, until all trials have finished.

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
    settings = plan.settings
    with Interrupts() as interrupts:
        study = open_study(plan)
        task = _prepare_task(plan, objective, recorder, study)
        with interrupts.ending():
            if settings.workers in (None, 1):
                Worker(task, study, interrupts, on_progress).work()
            else:
                _work_in_processes(task, study, interrupts, prepare, on_progress)
        trials = study.get_trials(deepcopy=False)
        wrong = configuration_error(trials, task.before, settings.trials)
        counts = count(trials)
        missing = max(counts.begun, settings.trials) - counts.finished
        outcome: Outcome = "failed" if wrong or missing else "finished"
        _close_runs(task, study, "killed" if interrupts.requested else outcome)
    if interrupts.requested:
        raise KeyboardInterrupt
    if wrong:
        raise SettingsError(f"the study '{settings.name}' was stopped: {wrong}")
    if missing:
        raise RuntimeError(
            f"all workers ended with an error after {counts.finished} of {settings.trials} "
            "trials; the log has the errors, and the same command continues the study"
        )
    return study


class Interrupts(ExitStack):
    """Context manager: Ctrl-C and SIGTERM wait until an interruption is allowed.

    Only the first signal counts: a terminal sends it to a worker twice. Outside of the main
    thread, where Python handles no signals, nothing is changed.
    """

    requested = False
    _allowed = False

    def __enter__(self) -> Interrupts:
        """Install the signal handlers until the end of the block."""
        if threading.current_thread() is threading.main_thread():
            for each in (signal.SIGINT, signal.SIGTERM):
                self.callback(signal.signal, each, signal.signal(each, self._handle))
        return self

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Context manager: a signal before or in the block raises KeyboardInterrupt."""
        self._allowed = True
        try:
            if self.requested:
                raise KeyboardInterrupt
            yield
        finally:
            self._allowed = False

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Context manager: a KeyboardInterrupt ends the block quietly, and sets `requested`."""
        try:
            yield
        except KeyboardInterrupt:
            self.requested = True

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """Signal handler: record the signal, and raise KeyboardInterrupt where it is allowed."""
        first, self.requested = not self.requested, True
        if first and self._allowed:
            raise KeyboardInterrupt


@dataclass(frozen=True)
class WorkerTask:
    """Inputs of a worker of a study; pickled to worker processes."""

    plan: StudyPlan
    objective: Objective
    recorder: TuningRecord
    run: str
    """Id of the study's run."""
    before: frozenset[int]
    """Numbers of the trials that had finished before this run of the study."""


class Worker:
    """Runs trials of an Optuna study in this process, beside other workers."""

    def __init__(
        self,
        task: WorkerTask,
        study: optuna.Study,
        interrupts: Interrupts,
        on_progress: OnProgress | None = None,
    ) -> None:
        self._task, self._study, self._interrupts = task, study, interrupts
        self._on_progress = on_progress
        # The study's, while this worker takes a trial.
        self._lock = ExitStack()
        self._taken: optuna.Trial | None = None

    def work(self) -> None:
        """Run trials until the study is complete, interrupted or misconfigured.

        A worker without a trial waits while others have one, for it may have to be retried.
        """
        plan, settings = self._task.plan, self._task.plan.settings
        while not self._interrupts.requested and not _is_orphaned():
            with self._lock:
                self._lock.enter_context(plan.lock())
                recover(self._study, settings.retries)
                trials = self._study.get_trials(deepcopy=False)
                if configuration_error(trials, self._task.before, settings.trials) is not None:
                    return
                counts = count(trials)
                if counts.waiting or counts.begun < settings.trials:
                    self._run_one(trials)
                    continue
                if not counts.running:
                    return
            time.sleep(min(_SECONDS_BETWEEN_LOOKS, settings.storage.heartbeat / 2))

    def _run_one(self, trials: Sequence[FrozenTrial]) -> None:
        """Run one waiting or new trial; the study's lock is held until the trial begins."""
        plan = self._task.plan
        begun = sum(trial.state != TrialState.WAITING for trial in trials)
        self._study.sampler = sampler(plan.settings.sampler, plan.seed, begun)
        self._taken = None
        try:
            self._study.optimize(
                self._evaluate, n_trials=1, catch=(TrialFailed,), callbacks=[self._close_run]
            )
        except (ValueError, AssertionError, UpdateFinishedTrialError):
            # Three ways in which Optuna reports that another worker has finished the trial.
            if not self._failed_as_stale():
                raise
            log.warning("a trial was failed as stale while it ran: its retry counts")

    def _evaluate(self, trial: optuna.Trial) -> float | Sequence[float]:
        """Start a trial's MLflow run, and compute its objective values."""
        self._taken = trial
        start_heartbeat(trial, self._task.plan.settings.retries)
        self._lock.close()
        with _recorded_later(trial.number):
            run_id = self._task.recorder.open_trial(self._task.run, trial.number)
            trial.set_user_attr(RUN_ID, run_id)
        return run_objective(self._task.objective, trial, self._interrupts.allowed)

    def _close_run(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """End a finished trial's MLflow run, and log the trial's state."""
        if RUN_ID in trial.user_attrs:
            with _recorded_later(trial.number):
                _close_trial(self._task.recorder, trial.user_attrs[RUN_ID], trial)
        log.info("trial %d: %s", trial.number, trial.state.name.lower())
        if self._on_progress is not None:
            self._on_progress(study)

    def _failed_as_stale(self) -> bool:
        """Whether another worker took this worker's trial for killed, and failed it."""
        if self._taken is None:
            return False
        trial = self._taken.storage.get_trial(self._taken._trial_id)
        return failure(trial) is Failure.KILLED


def _work_in_processes(
    task: WorkerTask,
    study: optuna.Study,
    interrupts: Interrupts,
    prepare: Callable[[], None] | None,
    on_progress: OnProgress | None,
) -> None:
    """Keep worker processes running until the study has ended or is interrupted."""
    settings = task.plan.settings
    # As many replacements as if every attempt at every trial killed its worker.
    replacements = settings.trials * (settings.retries + 1)
    processes = [_start_worker(task, prepare) for _ in range(settings.workers or 1)]
    try:
        while processes:
            with interrupts.allowed():
                wait([process.sentinel for process in processes], _SECONDS_BETWEEN_LOOKS)
            if on_progress is not None:
                on_progress(study)
            # Asked once: a process may end at any moment.
            ended = [process for process in processes if process.exitcode is not None]
            killed = sum(map(_was_killed, ended))
            replacements -= killed
            if replacements < 0:
                log.error("workers keep being killed; is there enough memory for all of them?")
                break
            processes = [process for process in processes if process not in ended]
            processes += [_start_worker(task, prepare) for _ in range(killed)]
    finally:
        _stop_processes(processes)


def _start_worker(task: WorkerTask, prepare: Callable[[], None] | None) -> BaseProcess:
    """Start a worker in a new process."""
    # Forked processes would share CUDA, threads and database connections with this one.
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_work_in_process, args=(task, prepare))
    process.start()
    return process


def _was_killed(process: BaseProcess) -> bool:
    """Whether a worker process that has ended was killed or interrupted; logs how it ended."""
    code = process.exitcode or 0
    if code == 0:
        return False
    if code > 0 and code != _INTERRUPTED:
        log.error("worker %s ended with an error; the others continue", process.pid)
        return False
    log.warning("worker %s was killed (exit code %s)", process.pid, code)
    return True


def _stop_processes(processes: Sequence[BaseProcess]) -> None:
    """Terminate worker processes, and kill those that do not end in time."""
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(_SECONDS_TO_STOP)
        process.kill()
        process.join()


def _work_in_process(task: WorkerTask, prepare: Callable[[], None] | None) -> None:
    """Main function of a worker process: runs trials of the study."""
    with Interrupts() as interrupts:
        if prepare is not None:
            prepare()
        with interrupts.ending():
            Worker(task, open_study(task.plan), interrupts).work()
    if interrupts.requested:
        raise SystemExit(_INTERRUPTED)


def _is_orphaned() -> bool:
    """Whether the process that started this one has ended."""
    parent = multiprocessing.parent_process()
    return parent is not None and not parent.is_alive()


def _prepare_task(
    plan: StudyPlan, objective: Objective, recorder: TuningRecord, study: optuna.Study
) -> WorkerTask:
    """Recover the study's trials, start its MLflow run, and return the workers' inputs."""
    settings = plan.settings
    with plan.lock():
        recover(study, settings.retries)
        requeue_misconfigured(study)
        trials = study.get_trials(deepcopy=False)
        run_id = recorder.open_study(settings.name, study.user_attrs.get(RUN_ID))
        study.set_user_attr(RUN_ID, run_id)
    log.info(
        "study '%s' in %s: %d of %d trials have finished",
        settings.name,
        masked(plan.url.render_as_string(hide_password=True)),
        count(trials).finished,
        settings.trials,
    )
    before = frozenset(trial.number for trial in trials if trial.state.is_finished())
    return WorkerTask(plan, objective, recorder, run_id, before)


@contextmanager
def _recorded_later(number: int) -> Iterator[None]:
    """Context manager that only logs an MLflow error; the run is completed at the study's end."""
    try:
        yield
    except SettingsError as error:
        log.warning("trial %d is recorded at the study's end: %s", number, error)


def _close_trial(recorder: TuningRecord, run_id: str, trial: FrozenTrial) -> None:
    """End a trial's MLflow run as finished, failed or killed."""
    kind = failure(trial)
    outcome: Outcome = "finished" if kind is None else "failed"
    if kind in (Failure.KILLED, Failure.INTERRUPTED):
        outcome = "killed"
    recorder.close_trial(run_id, trial, outcome, reason(trial))


def _close_runs(task: WorkerTask, study: optuna.Study, outcome: Outcome) -> None:
    """End the MLflow runs of the study and its finished trials, unless a trial still runs.

    A worker may have been killed between a trial's end and its record.
    """
    with task.plan.lock():
        trials = study.get_trials(deepcopy=False)
        if count(trials).running:
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
