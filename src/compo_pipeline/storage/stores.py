"""Stores of values that are computed once: a kill loses none, and a damaged one is made again."""

from __future__ import annotations

import hashlib
import json
import logging
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pydantic

from compo_pipeline.configuration.settings import SettingsError
from compo_pipeline.storage.files import (
    NO_CHECKSUM,
    DamagedFileError,
    atomic_file,
    is_full_disk,
    naming_full_disk,
    verify_checksum,
    write_checksum,
)

if TYPE_CHECKING:
    from torch import Tensor

Value = TypeVar("Value")

_LOCK_TIMEOUT = 60.0  # seconds to wait for another process's write
_Work = Callable[[sqlite3.Connection], list[tuple[str, str]]]

log = logging.getLogger(__name__)


class KeyValueStore(Generic[Value]):
    """Key-value store in one SQLite file, safe to share between threads and processes.

    Values are committed before `put` returns, so a process may be killed at any moment. A key
    must cover everything that its value depends on; deleting the file is always safe, and a damaged
    one is set aside.
    """

    def __init__(self, path: Path, value_type: type[Value]) -> None:
        """Name the file; the first `put` creates it.

        Args:
            path: the SQLite file.
            value_type: a type that pydantic converts to and from JSON, such as a dataclass, a
                NamedTuple or `str`.
        """
        self._path = path
        self._type: pydantic.TypeAdapter[Value] = pydantic.TypeAdapter(value_type)
        self._logged = False

    def get(self, keys: Iterable[str]) -> dict[str, Value]:
        """Stored values by key, for the given keys; keys without a stored value are left out.

        Unreadable values, and values that do not fit their checksum, count as absent.

        Raises:
            SettingsError: the file is not such a store.
        """
        if not self._path.exists():
            return {}
        asked = list(keys)
        query = "SELECT key, value FROM entries WHERE key IN (SELECT value FROM json_each(?))"
        rows: dict[str, Any] = dict(
            self._transaction(
                lambda entries: entries.execute(query, [json.dumps(asked)]).fetchall()
            )
        )
        found, unreadable = {}, 0
        for key in filter(rows.__contains__, asked):
            checksum, _, text = str(rows[key]).partition(" ")
            try:
                if checksum != _entry_checksum(key, text):
                    raise ValueError
                found[key] = self._type.validate_json(text)
            except ValueError:
                unreadable += 1
        if unreadable:
            log.warning("%s: %d unreadable entries are ignored", self._path, unreadable)
        return found

    def put(self, values: Mapping[str, Value], *, replace: bool = True) -> None:
        """Store values by key; with `replace` false, keys that already have a value keep it.

        Raises:
            SettingsError: the file is not such a store.
            DiskFullError: no space is left.
        """
        query = f"INSERT OR {'REPLACE' if replace else 'IGNORE'} INTO entries VALUES (?, ?)"
        texts = {key: self._type.dump_json(value).decode() for key, value in values.items()}
        rows = [(key, f"{_entry_checksum(key, text)} {text}") for key, text in texts.items()]
        with naming_full_disk(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._transaction(lambda entries: entries.executemany(query, rows).fetchall())

    @contextmanager
    def many_writes(self) -> Iterator[None]:
        """Context manager that makes many `put` calls fast, by SQLite's write-ahead log.

        A killed process still loses none; a machine that loses its power may lose the last of them.
        A file system that several hosts share has no such log: there, nothing changes.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Open until the end: the last connection that is closed copies the log into the file.
        with closing(sqlite3.connect(self._path, timeout=_LOCK_TIMEOUT)) as held:
            with suppress(sqlite3.DatabaseError):  # the first `get` or `put` says what is wrong
                (mode,) = held.execute("PRAGMA journal_mode=WAL").fetchone()
                self._logged = mode == "wal"
                held.execute("SELECT 1 FROM sqlite_master").fetchall()  # opens the log
            try:
                yield
            finally:
                self._logged = False
                with suppress(sqlite3.DatabaseError):  # another process has it open
                    held.execute("PRAGMA busy_timeout=0")
                    held.execute("PRAGMA journal_mode=DELETE")

    def _transaction(self, work: _Work) -> list[tuple[str, str]]:
        """Run work on the database in one transaction; a damaged file is replaced first."""
        try:
            return self._run_transaction(work)
        except sqlite3.DatabaseError as error:
            if is_full_disk(error):
                raise
            if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_CORRUPT:
                raise SettingsError(
                    f"{self._path}: expected a store of this program, got another kind of file or "
                    f"a broken one ({error}); move it away and run again"
                ) from error
            aside = self._path.with_name(f"{self._path.name}.damaged")
            log.warning(
                "%s is damaged (%s): begun anew; the old file is %s", self._path, error, aside
            )
        self._path.replace(aside)
        for ending in ("journal", "wal", "shm"):
            self._path.with_name(f"{self._path.name}-{ending}").unlink(missing_ok=True)
        return self._run_transaction(work)

    def _run_transaction(self, work: _Work) -> list[tuple[str, str]]:
        """Run work on the database in one transaction, with the table created if missing."""
        with closing(sqlite3.connect(self._path, timeout=_LOCK_TIMEOUT)) as connection, connection:
            if self._logged:
                connection.execute("PRAGMA synchronous=NORMAL")
            connection.text_factory = partial(str, encoding="utf-8", errors="replace")
            connection.execute(
                "CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY, value TEXT)"
            )
            return work(connection)


class TensorStore:
    """Store of rows of tensors by key, in a folder of safetensors files.

    A file has the rows of some keys; files are added, and none changes. A key must cover everything
    that its rows depend on. Deleting the folder is always safe.
    """

    def __init__(self, folder: Path) -> None:
        """Name the folder; the first `add` creates it."""
        self.folder = folder

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Context manager: lock the store, so that no other process computes the same rows."""
        from filelock import FileLock

        self.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self.folder / "in_use.lock"):
            yield

    def parts(self) -> Iterator[tuple[list[str], dict[str, Tensor]]]:
        """Yield the keys and tensors of each file of the store; a damaged file is deleted."""
        from safetensors import safe_open

        for file in self._files():
            try:
                verify_checksum(file)
            except DamagedFileError as error:
                log.warning("%s; its rows are computed again.", error.message)
                file.unlink()
                continue
            with safe_open(file, framework="pt") as part:
                keys = json.loads(part.metadata()["keys"])
                yield keys, {name: part.get_tensor(name) for name in part.keys()}  # noqa: SIM118

    def add(self, keys: Iterable[str], tensors: Mapping[str, Tensor]) -> None:
        """Store the tensors' rows of new keys as one more file, atomically.

        Args:
            keys: n keys.
            tensors: by name, each [n, ...].
        """
        from safetensors.torch import save_file

        metadata = {"keys": json.dumps(list(keys)), "checksum": NO_CHECKSUM}
        number = max((int(file.stem) + 1 for file in self._files()), default=0)
        with atomic_file(self.folder / f"{number:04d}.safetensors") as temporary:
            save_file(dict(tensors), temporary, metadata=metadata)
            write_checksum(temporary)

    def _files(self) -> list[Path]:
        """The safetensors files of the store, sorted by name."""
        return sorted(self.folder.glob("*.safetensors"))


def _entry_checksum(key: str, value: str) -> str:
    """Checksum of a key and its value: the first 16 hexadecimal digits of SHA-256."""
    return hashlib.sha256(f"{key}\0{value}".encode()).hexdigest()[:16]
