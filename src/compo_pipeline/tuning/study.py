"""Studies: their database, and the loop that runs their trials.

sqlite serves the processes of one machine (its file must not be on a network drive), PostgreSQL
those of several.
"""

from __future__ import annotations

import multiprocessing
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy
from filelock import FileLock
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.storages import RDBStorage, fail_stale_trials
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from compo_pipeline.core.seeding import digest
from compo_pipeline.core.settings import SettingsError, pip_install
from compo_pipeline.training.checkpoint import differences
from compo_pipeline.tuning.settings import StudySettings

Objective = Callable[[optuna.Trial], float]

# Attributes of a trial: it has begun, why it failed, numbers of its earlier attempts.
BEGUN, REASON, EARLIER = "begun", "reason", "earlier_attempts"
_FINGERPRINT = "fingerprint"  # attribute of a study
# Seconds between a trial's heartbeats, and without one until its worker counts as killed.
_HEARTBEAT, _GRACE = 20, 90
_RETRIES = 5  # of a trial whose worker is killed
_RANDOM_TRIALS, _UNPRUNED_TRIALS = 8, 4  # before the sampler learns, before any is pruned
_SECONDS_BETWEEN_LOOKS = 2.0
# How long a process waits for its turn to write; sqlite's own default is 5 s.
_SQLITE = {"connect_args": {"timeout": 120}}


class TrialFailed(Exception):
    """Exception: a trial has failed by an error, which its attributes name."""


@dataclass(frozen=True)
class StudyPlan:
    """Inputs of an Optuna study that all workers share.

    They are pickled to worker processes.
    """

    settings: StudySettings
    folder: Path
    """Folder of the sqlite file, where the settings name no database."""
    configured: Mapping[str, Any]
    """Configured values of the searched settings: always the first trial."""
    fingerprint: Mapping[str, Any]
    """Hash of everything that makes trials comparable (method, data, space, ...)."""
    seed: int = 0
    """Seed of the sampler."""
    first_look: int = 1
    """The first look at which a trial may be pruned."""

    @property
    def url(self) -> URL:
        """URL of the study's database."""
        return _url(self.settings, self.folder)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Context manager: hold the study's lock, which one process at a time can hold.

        A file lock beside a sqlite file, an advisory lock in PostgreSQL: both end with their
        holder.
        """
        if self.url.database and self.url.get_backend_name() == "sqlite":
            Path(self.url.database).parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{self.url.database}.lock"):
                yield
            return
        key = digest(self.settings.name) - 2**63  # keys are signed
        with sqlalchemy.create_engine(self.url, poolclass=NullPool).connect() as connection:
            # Held until the end of the transaction.
            connection.execute(sqlalchemy.text(f"SELECT pg_advisory_xact_lock({key})"))
            yield


def open_study(plan: StudyPlan) -> optuna.Study:
    """Create the Optuna study, with the configured values as its first trial, or join it.

    Raises:
        SettingsError: the storage cannot be used, or holds a study of this name and another
            fingerprint.
    """
    url = plan.url
    try:
        # Two processes cannot create the tables at the same time.
        with plan.locked(), _experimental():
            study = optuna.create_study(
                study_name=plan.settings.name,
                storage=RDBStorage(
                    url.render_as_string(hide_password=False),
                    _SQLITE if url.get_backend_name() == "sqlite" else None,
                    heartbeat_interval=_HEARTBEAT,
                    grace_period=_GRACE,
                ),
                direction="maximize",
                pruner=optuna.pruners.MedianPruner(_UNPRUNED_TRIALS, plan.first_look),
                load_if_exists=True,
            )
            known = study.user_attrs.get(_FINGERPRINT, plan.fingerprint)
            if differing := differences(known, plan.fingerprint):
                raise SettingsError(
                    f"tuning.study.name: a study '{study.study_name}' exists that differs in "
                    f"{', '.join(differing)}; its trials cannot be compared with new ones: choose "
                    "another name"
                )
            if not study.get_trials(deepcopy=False):
                study.set_user_attr(_FINGERPRINT, dict(plan.fingerprint))
                study.enqueue_trial(dict(plan.configured))
    except (ImportError, OSError, StorageInternalError, SQLAlchemyError) as error:
        cause = str(error.__cause__ or error).splitlines()[0]
        hint = f"; {pip_install('postgres')}" if isinstance(error, ImportError) else ""
        raise SettingsError(f"tuning.study.storage: cannot use {url!r}: {cause}{hint}") from None
    return study


def load_study(settings: StudySettings, folder: Path) -> optuna.Study:
    """Load an existing Optuna study from its database."""
    url = _url(settings, folder).render_as_string(hide_password=False)
    return optuna.load_study(study_name=settings.name, storage=url)


def work(plan: StudyPlan, objective: Objective) -> optuna.Study:
    """Run trials of a study beside other workers, until all trials have ended.

    The study's lock is held while a trial begins, so that no trial is too many. The same call
    continues a study whose workers were killed or interrupted.

    Raises:
        Exception: the configured values have failed by it: no other values would do better.
    """
    study = open_study(plan)
    parent = multiprocessing.parent_process()
    while parent is None or parent.is_alive():
        with ExitStack() as held:
            held.enter_context(plan.locked())
            _requeue_lost(study)
            trials = study.get_trials(deepcopy=False)
            states = [trial.state for trial in trials]
            running, waiting = states.count(TrialState.RUNNING), states.count(TrialState.WAITING)
            if waiting or running + sum(map(has_ended, trials)) < plan.settings.trials:
                # Workers never propose the same values; a study goes on as if uninterrupted.
                seed = digest(plan.seed, "sampler", len(trials) - waiting) % 2**32
                study.sampler = optuna.samplers.TPESampler(
                    seed=seed, n_startup_trials=_RANDOM_TRIALS
                )
                run = partial(_run_trial, plan.configured, objective, held.close)
                study.optimize(run, n_trials=1, catch=(TrialFailed,))
                continue
        if not running:
            break
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    return study


def has_ended(trial: FrozenTrial) -> bool:
    """Whether a trial counts: it was finished, pruned, failed by an error, or killed too often."""
    if trial.state == TrialState.FAIL:
        return REASON in trial.user_attrs or len(trial.user_attrs.get(EARLIER, ())) >= _RETRIES
    return trial.state.is_finished()


def _url(settings: StudySettings, folder: Path) -> URL:
    """URL of a study's database with an installed driver, by default a file in the folder."""
    if settings.storage is None:
        return URL.create("sqlite", database=str((folder / "study.db").resolve()))
    url = make_url(settings.storage)
    return url.set(drivername="postgresql+psycopg") if url.drivername == "postgresql" else url


def _run_trial(
    configured: Mapping[str, Any],
    objective: Objective,
    begun: Callable[[], None],
    trial: optuna.Trial,
) -> float:
    """Call the objective with a trial, after its first heartbeat, and store why it fails."""
    # What Optuna wraps the storage in has the same method.
    trial.storage.record_heartbeat(trial._trial_id)  # type: ignore[attr-defined]
    trial.set_user_attr(BEGUN, True)
    begun()
    try:
        return objective(trial)
    except optuna.TrialPruned:
        raise
    except Exception as error:
        if trial.params == configured:
            raise
        reason = f"{type(error).__name__}: {error}"
        trial.set_user_attr(REASON, reason)
        raise TrialFailed(reason) from error


def _requeue_lost(study: optuna.Study) -> None:
    """Fail the trials of killed workers, and queue lost trials again with their values.

    Lost trials are those of killed and interrupted workers. The study's lock is held.
    """
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        if BEGUN not in trial.user_attrs:  # killed before its first heartbeat
            study.tell(trial.number, state=TrialState.FAIL)
    with _experimental():
        fail_stale_trials(study)
    trials = study.get_trials(deepcopy=False)
    earlier = [trial.user_attrs.get(EARLIER, []) for trial in trials]
    retried = {number for numbers in earlier for number in numbers}
    for trial, numbers in zip(trials, earlier, strict=True):
        lost = trial.state == TrialState.FAIL and not has_ended(trial)
        if lost and trial.number not in retried:
            values = trial.params or trial.system_attrs.get("fixed_params", {})
            study.enqueue_trial(values, user_attrs={EARLIER: [*numbers, trial.number]})


@contextmanager
def _experimental() -> Iterator[None]:
    """Context manager: use experimental parts of Optuna without its warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        yield
