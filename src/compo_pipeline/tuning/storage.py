"""The database that a study is kept in, shared by workers that may be killed at any moment.

sqlite serves the processes of one machine (its file must not lie on a network drive), PostgreSQL
those of several. What decides over trials (who runs which, which is lost, which is tried again)
happens under a lock that its holder's death releases, so that half done work is seen by the next.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
import sqlalchemy
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, OperationalError

from compo_pipeline.configuration import SettingsError
from compo_pipeline.seeding import digest
from compo_pipeline.tuning.settings import KEY, StorageSettings

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

# A process that waits for its turn to write; sqlite gives up at once unless told otherwise.
BUSY_SECONDS = 120
FILE = "study.db"

log = logging.getLogger(__name__)


class Storage(optuna.storages.RDBStorage):
    """Optuna's storage, except that only this project's recovery fails stale trials.

    Optuna would do it before each new trial, without a reason (a failed trial takes no more
    attributes) and apart from the retry, which is lost where the process dies between the two.
    """

    def _get_stale_trial_ids(self, study_id: int) -> list[int]:
        return []

    def stale(self, study: str) -> list[int]:
        """Ids of running trials that gave no sign of life for longer than the grace."""
        return super()._get_stale_trial_ids(self.get_study_id_from_name(study))

    def record_heartbeat(self, trial_id: int) -> None:
        """Write a sign of life; one that fails must not end the thread that gives them."""
        try:
            super().record_heartbeat(trial_id)
        except (StorageInternalError, OperationalError) as error:
            log.warning("a sign of life could not be written: %s", error)


class Lock:
    """The right to decide over a study's trials: one worker at a time, on any machine.

    A file lock beside a sqlite file, an advisory lock in PostgreSQL: either ends with its holder.
    """

    def __init__(self, storage: Storage, study: str) -> None:
        self._storage = storage
        self._key = digest("tuning lock", study) - 2**63  # PostgreSQL's keys are signed
        self._file: int | None = None
        self._connection: Connection | None = None

    def acquire(self) -> None:
        """Wait for the lock."""
        url = self._storage.engine.url
        if url.get_backend_name() == "sqlite":
            self._file = os.open(f"{url.database}.lock", os.O_RDWR | os.O_CREAT)
            fcntl.flock(self._file, fcntl.LOCK_EX)
        else:
            self._connection = self._storage.engine.connect()
            query = sqlalchemy.text("SELECT pg_advisory_xact_lock(:key)")
            self._connection.execute(query, {"key": self._key})

    def release(self) -> None:
        """Let others decide; nothing happens where the lock is not held."""
        if self._file is not None:
            # Closing alone would leave it to a child process that was forked meanwhile.
            fcntl.flock(self._file, fcntl.LOCK_UN)
            os.close(self._file)
            self._file = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> Lock:
        """Wait for the lock."""
        self.acquire()
        return self

    def __exit__(self, *error: object) -> None:
        """Let others decide."""
        self.release()


def connect(settings: StorageSettings, folder: Path) -> Storage:
    """Open the storage; its tables are made where there are none.

    Args:
        settings: the URL, and the times of the heartbeat.
        folder: of the sqlite file where the settings name no URL.

    Raises:
        SettingsError: no such database can be used or reached.
    """
    if settings.grace <= settings.heartbeat:
        raise SettingsError(
            f"{KEY}.storage.grace: expected more than the heartbeat's {settings.heartbeat} s, "
            f"got {settings.grace} s"
        )
    url = _url(settings.url, folder)
    if url.get_backend_name() == "postgresql":
        return _open(url, settings)
    file = Path(str(url.database))
    file.parent.mkdir(parents=True, exist_ok=True)
    # Two processes that make the tables at once get in each other's way.
    with file.with_name(f"{file.name}.new").open("w", encoding="utf-8") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        return _open(url, settings)


def masked(storage: Storage) -> str:
    """The storage's URL as it may be logged: without its password."""
    return storage.engine.url.render_as_string(hide_password=True)


def _url(given: str | None, folder: Path) -> URL:
    """The URL with a driver that is installed; relative files are made absolute."""
    if given is None:
        return URL.create("sqlite", database=str((folder / FILE).resolve()))
    expected = (
        f"{KEY}.storage.url: expected sqlite:///<file>, "
        "postgresql://<user>@<host>/<database>, or null for a file of the study's own"
    )
    try:
        url = make_url(given)
    except ArgumentError:
        # What was given may hold a password.
        raise SettingsError(f"{expected}; got what is no URL") from None
    backend = url.get_backend_name()
    if backend == "sqlite" and url.database not in (None, "", ":memory:"):
        return URL.create("sqlite", database=str(Path(str(url.database)).resolve()))
    if backend == "postgresql":
        return url.set(drivername="postgresql+psycopg") if "+" not in url.drivername else url
    raise SettingsError(f"{expected}; got {url.render_as_string(hide_password=True)}")


def _open(url: URL, settings: StorageSettings) -> Storage:
    postgres = url.get_backend_name() == "postgresql"
    options: dict[str, Any] = (
        {"pool_pre_ping": True} if postgres else {"connect_args": {"timeout": BUSY_SECONDS}}
    )
    # Optuna fills in a template.
    text = url.render_as_string(hide_password=False).replace("{", "{{").replace("}", "}}")
    shown = url.render_as_string(hide_password=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            storage = Storage(
                text,
                engine_kwargs=options,
                heartbeat_interval=settings.heartbeat,
                grace_period=settings.grace,
            )
    except (ImportError, NoSuchModuleError):
        raise SettingsError(
            f"{KEY}.storage.url: {shown} needs a driver: pip install 'compo-pipeline[postgres]'"
        ) from None
    except (StorageInternalError, OperationalError) as error:
        cause = str(error.__cause__ or error).splitlines()[0]
        raise SettingsError(f"{KEY}.storage.url: cannot use {shown}: {cause}") from None
    if not postgres:
        _serialise(storage)
    return storage


def _serialise(storage: Storage) -> None:
    """Make every transaction of sqlite take its turn before it reads.

    Python's driver begins a transaction at the first write only: what Optuna reads and then
    decides upon (is this trial still waiting?) would be decided by two processes at once.
    """
    engine = storage.engine

    @sqlalchemy.event.listens_for(engine, "connect")
    def _prepare(connection: sqlite3.Connection, record: object) -> None:
        connection.isolation_level = None
        connection.execute("PRAGMA journal_mode=WAL")
        # What is committed outlives the process; a power cut may cost the last seconds.
        connection.execute("PRAGMA synchronous=NORMAL")

    @sqlalchemy.event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    # Connections of before do not know of this.
    engine.dispose()
