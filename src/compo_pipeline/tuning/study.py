"""Studies: their database, first trials, sampler and pruner.

sqlite serves the processes of one machine (its file must not be on a network drive), PostgreSQL
those of several.
"""

from __future__ import annotations

import logging
import sqlite3
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import optuna
import sqlalchemy
from filelock import FileLock
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.engine import URL, Connection, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, OperationalError
from sqlalchemy.pool import NullPool

from compo_pipeline.configuration.settings import SettingsError, pip_install
from compo_pipeline.run.seeding import digest
from compo_pipeline.tuning.settings import (
    STUDY,
    PrunerSettings,
    SamplerSettings,
    StorageSettings,
    StudySettings,
)
from compo_pipeline.tuning.space import Space

Values = Mapping[str, Any]
Direction = Literal["maximize", "minimize"]

# The study's attribute with the id of its MLflow run.
RUN_ID = "run_id"
# The study's attribute with its fingerprint, as existing databases name it.
_FINGERPRINT = "identity"
# Attribute of an enqueued trial: where its values come from.
ORIGIN = "origin"
_FILE = "study.db"
# Held until the end of its transaction; keys are signed.
_PG_LOCK = "SELECT pg_advisory_xact_lock(:key)"
# How long a process waits for its turn to write; sqlite's own default is to give up at once.
_BUSY_SECONDS = 120

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StudyPlan:
    """Inputs of an Optuna study that all workers share; pickled to worker processes."""

    settings: StudySettings
    folder: Path
    """Folder of the sqlite file, where the settings name no database."""
    space: Space
    configured: Values
    """Configured values of the searched settings: always trial 0."""
    directions: tuple[Direction, ...] = ("maximize",)
    fingerprint: Values = field(default_factory=dict)
    """What makes trials comparable (method, data, space, ...); a study with another is refused."""
    seed: int = 0
    """Seed of the sampler."""

    @property
    def url(self) -> URL:
        """URL of the study's database."""
        return _url(self.settings.storage.url, self.folder)

    def lock(self) -> AbstractContextManager[None]:
        """Context manager: lock the study, so that no other worker takes a trial."""
        return exclusive(self.url, f"study {self.settings.name}")


class Storage(optuna.storages.RDBStorage):
    """Optuna's RDBStorage whose heartbeats log an error of the database in place of raising it.

    The thread that writes a trial's heartbeats would end with the error: other workers would take
    the trial for killed, and train it a second time in the same folder.
    """

    def record_heartbeat(self, trial_id: int) -> None:
        """Write a trial's heartbeat; an error of the database is logged."""
        try:
            super().record_heartbeat(trial_id)
        except (StorageInternalError, OperationalError) as error:
            log.warning("a heartbeat could not be written: %s", error)


@contextmanager
def exclusive(url: URL, purpose: str) -> Iterator[None]:
    """Context manager: hold a lock of a database, which one process at a time can hold.

    A file lock beside a sqlite file, an advisory lock in PostgreSQL: both end with their holder.
    """
    key = digest(purpose)
    if url.get_backend_name() == "sqlite":
        with FileLock(f"{url.database}.{key:016x}.lock"):
            yield
        return
    with sqlalchemy.create_engine(url, poolclass=NullPool).connect() as connection:
        connection.execute(sqlalchemy.text(_PG_LOCK), {"key": key - 2**63})
        yield


@contextmanager
def experimental() -> Iterator[None]:
    """Context manager: use experimental parts of Optuna without its warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        yield


def open_study(plan: StudyPlan) -> optuna.Study:
    """Create the Optuna study or join it; the first worker queues the first trials.

    Raises:
        SettingsError: the storage cannot be used, or holds a study of this name and another
            fingerprint.
    """
    # Optuna's own log would repeat each line.
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = connect(plan.settings.storage, plan.folder)
    with plan.lock():
        study = optuna.create_study(
            study_name=plan.settings.name,
            storage=storage,
            directions=list(plan.directions),
            pruner=pruner(plan.settings.pruner),
            load_if_exists=True,
        )
        _check_fingerprint(study, plan)
        _enqueue_first(study, storage, plan)
    return study


def load_study(settings: StudySettings, folder: Path) -> optuna.Study:
    """Load an existing Optuna study from its database."""
    storage = connect(settings.storage, folder)
    return optuna.load_study(study_name=settings.name, storage=storage)


def meets_constraints(trial: FrozenTrial) -> bool:
    """Whether a finished trial meets its constraints; true for a trial without constraints."""
    return max(trial.constraints.values(), default=0) <= 0


def sampler(settings: SamplerSettings, seed: int, begun: int) -> optuna.samplers.BaseSampler:
    """Optuna sampler for the next trial, seeded by the number of trials before it.

    Workers thus never propose the same values, and an interrupted study of one worker continues
    with the trials that it would have had.
    """
    seed = digest(seed, "sampler", begun) % 2**32
    if settings.name == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    return optuna.samplers.TPESampler(seed=seed, n_startup_trials=settings.startup_trials)


def pruner(settings: PrunerSettings) -> optuna.pruners.BasePruner:
    """Optuna pruner for the settings."""
    if settings.name == "median":
        return optuna.pruners.MedianPruner(settings.startup_trials, settings.first_look)
    least, factor = settings.min_resource, settings.reduction_factor
    if settings.name == "hyperband":
        return optuna.pruners.HyperbandPruner(least, reduction_factor=factor)
    if settings.name == "successive_halving":
        return optuna.pruners.SuccessiveHalvingPruner(least, factor)
    return optuna.pruners.NopPruner()


def connect(settings: StorageSettings, folder: Path) -> Storage:
    """Open Optuna's database; missing tables are created.

    Args:
        settings: URL, and times of the heartbeat.
        folder: of the sqlite file where the settings name no URL.

    Raises:
        SettingsError: no such database can be used or reached.
    """
    url = _url(settings.url, folder)
    shown = url.render_as_string(hide_password=True)
    sqlite = url.get_backend_name() == "sqlite"
    if sqlite:
        Path(str(url.database)).parent.mkdir(parents=True, exist_ok=True)
    try:
        # Two processes cannot create the tables at the same time.
        with exclusive(url, "tables of studies"), experimental():
            storage = Storage(
                # Optuna formats the URL as a template.
                url.render_as_string(hide_password=False).replace("{", "{{").replace("}", "}}"),
                {"connect_args": {"timeout": _BUSY_SECONDS}} if sqlite else {"pool_pre_ping": True},
                heartbeat_interval=settings.heartbeat,
                grace_period=settings.grace,
            )
    except (ImportError, NoSuchModuleError):
        raise SettingsError(
            f"{STUDY}.storage.url: {shown} needs a driver: {pip_install('postgres')}"
        ) from None
    except (StorageInternalError, OperationalError) as error:
        cause = str(error.__cause__ or error).splitlines()[0]
        raise SettingsError(f"{STUDY}.storage.url: cannot use {shown}: {cause}") from None
    if sqlite:
        _serialise_writes(storage)
    return storage


def _url(given: str | None, folder: Path) -> URL:
    """Database URL with an installed driver, and with an absolute path of a sqlite file."""
    if given is None:
        return URL.create("sqlite", database=str((folder / _FILE).resolve()))
    expected = (
        f"{STUDY}.storage.url: expected sqlite:///<file>, "
        "postgresql://<user>@<host>/<database>, or null for a file in the study's folder"
    )
    try:
        url = make_url(given)
    except ArgumentError:
        # The value may contain a password.
        raise SettingsError(f"{expected}; got a value that is no URL") from None
    backend = url.get_backend_name()
    if backend == "sqlite" and url.database not in (None, "", ":memory:"):
        return URL.create("sqlite", database=str(Path(str(url.database)).resolve()))
    if backend == "postgresql":
        return url.set(drivername="postgresql+psycopg") if "+" not in url.drivername else url
    raise SettingsError(f"{expected}; got {url.render_as_string(hide_password=True)}")


def _serialise_writes(storage: Storage) -> None:
    """Make every sqlite transaction take the write lock at its beginning.

    Python's driver begins a transaction at the first write only: two processes could both read a
    trial's state and then both change it.
    """

    @sqlalchemy.event.listens_for(storage.engine, "connect")
    def _prepare(connection: sqlite3.Connection, record: object) -> None:
        connection.isolation_level = None
        connection.execute("PRAGMA journal_mode=WAL")
        # Commits survive the death of the process; a power cut may cost the last seconds.
        connection.execute("PRAGMA synchronous=NORMAL")

    @sqlalchemy.event.listens_for(storage.engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    # Connections that were opened before lack these listeners.
    storage.engine.dispose()


def _check_fingerprint(study: optuna.Study, plan: StudyPlan) -> None:
    """Store the study's fingerprint, or refuse a study that has another fingerprint."""
    ours = {key: str(value) for key, value in plan.fingerprint.items()}
    ours["directions"] = ", ".join(plan.directions)
    theirs = study.user_attrs.get(_FINGERPRINT)
    if theirs is None:
        study.set_user_attr(_FINGERPRINT, ours)
        return
    differing = sorted(key for key in {*ours, *theirs} if ours.get(key) != theirs.get(key))
    if differing:
        raise SettingsError(
            f"{STUDY}.name: a study '{study.study_name}' exists that differs in "
            f"{', '.join(differing)}; its trials cannot be compared with new ones: choose another "
            "name"
        )


def _enqueue_first(study: optuna.Study, storage: Storage, plan: StudyPlan) -> None:
    """Queue configured values and warm start as first trials, unless another worker has done so.

    No trial begins before all are queued, so one that has begun shows that they are.
    """
    trials = study.get_trials(deepcopy=False)
    if any(trial.state != TrialState.WAITING for trial in trials):
        return
    first: list[tuple[str, Values]] = [("configured", plan.configured)]
    first += [("warm start", values) for values in _warm_start(storage, plan)]
    for origin, values in first[len(trials) : plan.settings.trials]:
        study.enqueue_trial(dict(values), user_attrs={ORIGIN: origin})


def _warm_start(storage: Storage, plan: StudyPlan) -> list[Values]:
    """Parameter values of an earlier study's best feasible trials that fit the search space."""
    warm = plan.settings.warm_start
    if warm.study is None:
        return []
    if warm.url is not None:
        storage = connect(replace(plan.settings.storage, url=warm.url), plan.folder)
    try:
        earlier = optuna.load_study(study_name=warm.study, storage=storage)
    except KeyError:
        known = ", ".join(optuna.get_all_study_names(storage)) or "none"
        raise SettingsError(
            f"{STUDY}.warm_start.study: no study '{warm.study}' there (known: {known})"
        ) from None
    best = earlier.best_trials
    if len(earlier.directions) == 1:
        best = [
            trial
            for trial in earlier.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
            if meets_constraints(trial)
        ]
        maximize = earlier.direction == optuna.study.StudyDirection.MAXIMIZE
        best.sort(key=lambda trial: float(trial.values[0]), reverse=maximize)
    fitting = [trial.params for trial in best if plan.space.fits(trial.params)][: warm.trials]
    chosen: list[Values] = [values for values in fitting if values != dict(plan.configured)]
    log.info(
        "warm start with %d of the %d best trials of '%s'; the configured values, and those "
        "outside the space, are left out",
        len(chosen),
        len(best),
        warm.study,
    )
    return chosen
