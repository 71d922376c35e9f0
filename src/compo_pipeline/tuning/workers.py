"""The workers of this machine: one in this very process, or several in processes of their own.

Others may be started elsewhere on the same study at any time, with `run` as well.
"""

from __future__ import annotations

import logging
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess

import optuna

from compo_pipeline.configuration import SettingsError
from compo_pipeline.tuning import recording
from compo_pipeline.tuning.attempts import forgive, mistake, recover, standing
from compo_pipeline.tuning.failures import Objective
from compo_pipeline.tuning.interrupts import Interrupts
from compo_pipeline.tuning.recording import NoRecorder, Outcome, Recorder
from compo_pipeline.tuning.storage import masked
from compo_pipeline.tuning.study import RUN, Opened, Plan, open_study
from compo_pipeline.tuning.worker import Ended, Task, Watch, Worker

# A worker process that was told to stop and did.
_STOPPED = 75
_SECONDS_TO_STOP = 30.0
_SECONDS_BETWEEN_LOOKS = 0.2
_SECONDS_BETWEEN_WATCHES = 2.0

_OUTCOMES: dict[Ended, Outcome] = {
    Ended.COMPLETE: "finished",
    Ended.MISTAKEN: "failed",
    Ended.INTERRUPTED: "killed",
}

log = logging.getLogger(__name__)


def run(
    plan: Plan,
    objective: Objective,
    recorder: Recorder | None = None,
    prepare: Callable[[], None] | None = None,
    watch: Watch | None = None,
) -> optuna.Study:
    """Run a study, or what is left of it, and return it when all its trials have finished.

    May be called on several machines at once, and again after any interruption.

    Args:
        plan: the study.
        objective: called with each trial. With several workers it is pickled, once to each.
        recorder: keeps the record; none is kept without.
        prepare: called first in each worker process (logging, threads, devices).
        watch: called with the study every now and then (with one worker, after each trial).

    Raises:
        SettingsError: the storage or study cannot be used, or every trial ended with a
            configuration error.
        KeyboardInterrupt: stopped by Ctrl-C or SIGTERM; the same call goes on with it.
        RuntimeError: the workers ended, or kept dying, before the study was complete.
    """
    keeper: Recorder = recorder or NoRecorder()
    with Interrupts() as interrupts:
        opened = open_study(plan)
        task = _task(plan, objective, keeper, opened)
        try:
            if plan.settings.workers in (None, 1):
                ended = Worker(task, opened, interrupts, watch).work()
            else:
                ended = _Team(task, opened, prepare).work(interrupts, watch)
        except RuntimeError:
            _settle(task, opened, "failed")
            raise
        _settle(task, opened, _OUTCOMES[ended])
    if ended is Ended.INTERRUPTED:
        raise KeyboardInterrupt
    trials = opened.study.get_trials(deepcopy=False)
    why = mistake(trials, task.before, plan.settings.trials)
    if ended is Ended.MISTAKEN and why is not None:
        raise SettingsError(f"the study '{plan.settings.name}' was stopped: {why}")
    return opened.study


def _task(plan: Plan, objective: Objective, recorder: Recorder, opened: Opened) -> Task:
    """Bring the study's trials in order and open its run."""
    study, settings = opened.study, plan.settings
    with opened.lock:
        recover(study, opened.storage, settings.retries)
        forgive(study)
        trials = study.get_trials(deepcopy=False)
        before = frozenset(trial.number for trial in trials if trial.state.is_finished())
        known = study.user_attrs.get(RUN)
        opened_run = recorder.open_study(settings.name, known)
        study.set_user_attr(RUN, opened_run)
    now = standing(trials, settings.retries)
    log.info(
        "study '%s' in %s: %d of %d trials have finished",
        *(settings.name, masked(opened.storage), now.finished, settings.trials),
    )
    return Task(plan, objective, recorder, opened_run, before)


def _settle(task: Task, opened: Opened, outcome: Outcome) -> None:
    """Bring the record in order; the study's run is closed unless others are still at work."""
    with opened.lock:
        trials = opened.study.get_trials(deepcopy=False)
        if not standing(trials, task.plan.settings.retries).running:
            recording.settle(task.recorder, task.run, trials, outcome)


class _Team:
    """Worker processes; one that is killed is replaced."""

    def __init__(self, task: Task, opened: Opened, prepare: Callable[[], None] | None) -> None:
        self._task, self._opened, self._prepare = task, opened, prepare
        settings = task.plan.settings
        # Were every attempt at every trial to kill its worker, there would be so many to replace.
        self._replacements = settings.trials * (settings.retries + 1)
        self._members: list[BaseProcess] = []

    def work(self, interrupts: Interrupts, watch: Watch | None) -> Ended:
        """Keep the workers at work until the study has ended or is interrupted."""
        self._members = [self._start() for _ in range(self._task.plan.settings.workers or 1)]
        try:
            shown = time.monotonic()
            while self._members and not interrupts.wanted:
                self._replace()
                if watch is not None and time.monotonic() - shown > _SECONDS_BETWEEN_WATCHES:
                    watch(self._opened.study)
                    shown = time.monotonic()
                time.sleep(_SECONDS_BETWEEN_LOOKS)
        finally:
            self._stop()
        if watch is not None:
            watch(self._opened.study)
        return Ended.INTERRUPTED if interrupts.wanted else self._ended()

    def _start(self) -> BaseProcess:
        # Forked processes would share CUDA, threads and database connections with this one.
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=_work_there, args=(self._task, self._prepare))
        process.start()
        return process

    def _replace(self) -> None:
        """Start anew what was killed; what ended of its own accord is done, or beyond help."""
        for place, member in enumerate(self._members):
            code = member.exitcode
            if code is None or code == 0:
                continue
            if code > 0 and code != _STOPPED:
                log.error("worker %s ended with an error; the others go on", member.pid)
                continue
            log.warning("worker %s was killed (exit code %s)", member.pid, code)
            if self._replacements == 0:
                raise RuntimeError(
                    "workers keep being killed; is there enough memory for "
                    f"{len(self._members)} of them?"
                )
            self._replacements -= 1
            self._members[place] = self._start()
        self._members = [member for member in self._members if member.exitcode is None]

    def _stop(self) -> None:
        for member in self._members:
            member.terminate()
        until = time.monotonic() + _SECONDS_TO_STOP
        for member in self._members:
            member.join(max(0.0, until - time.monotonic()))
            if member.exitcode is None:
                member.kill()
                member.join()

    def _ended(self) -> Ended:
        settings = self._task.plan.settings
        trials = self._opened.study.get_trials(deepcopy=False)
        if mistake(trials, self._task.before, settings.trials) is not None:
            return Ended.MISTAKEN
        now = standing(trials, settings.retries)
        if now.finished < max(now.begun, settings.trials):
            raise RuntimeError(
                f"all workers ended with an error after {now.finished} of {settings.trials} "
                "trials; the errors stand above, and the same command goes on"
            )
        return Ended.COMPLETE


def _work_there(task: Task, prepare: Callable[[], None] | None) -> None:
    """What a worker process runs."""
    with Interrupts() as interrupts:
        if prepare is not None:
            prepare()
        ended = Worker(task, open_study(task.plan), interrupts).work()
    if ended is Ended.INTERRUPTED:
        raise SystemExit(_STOPPED)
