"""Files on disk: atomic writes, a resumable key-value store, and fingerprints of files."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import sqlite3
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

import pydantic

from compo_pipeline.configuration import SettingsError

Value = TypeVar("Value")

# Pieces read from a large file for its fingerprint: their number, and bytes of each.
_PIECES, _PIECE = 64, 2**16
_LOCK_TIMEOUT = 60.0  # seconds to wait for another process's write

log = logging.getLogger(__name__)


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; the file written there replaces `path` at the end.

    After an error or a kill, `path` is as it was before. Several processes may write the same
    path: the last one to finish replaces it. Missing parent folders are created.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")
    try:
        yield temporary
        with temporary.open("r+b") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty temporary folder, which replaces `folder` as a whole at the end.

    After an error, `folder` is as it was before; after a kill it is the old one, the new one or,
    between two renames, absent. Only one process at a time may write the same folder.
    """
    temporary = folder.with_name(f".{folder.name}.new")
    replaced = folder.with_name(f".{folder.name}.old")
    for leftover in (temporary, replaced):
        shutil.rmtree(leftover, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        if folder.exists():
            folder.rename(replaced)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(replaced, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically."""
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any, *, indent: int | None = 2) -> None:
    """Write a value as a JSON file atomically."""
    write_text(path, json.dumps(value, indent=indent, ensure_ascii=False) + "\n")


class KeyValueStore(Generic[Value]):
    """Values by key in one SQLite file, shared safely between threads and processes.

    Values are committed before `put` returns, so a process may be killed at any moment. A key
    must cover everything that its value depends on; deleting the file is always safe.
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

    def get(self, keys: Iterable[str]) -> dict[str, Value]:
        """Stored values of those keys that have one, in the order of the keys.

        Unreadable values count as absent.

        Raises:
            SettingsError: the file is not such a store.
        """
        if not self._path.exists():
            return {}
        asked = list(keys)
        query = "SELECT key, value FROM entries WHERE key IN (SELECT value FROM json_each(?))"
        with self._connected() as connection:
            rows: dict[str, str] = dict(connection.execute(query, [json.dumps(asked)]))
        found, unreadable = {}, 0
        for key in filter(rows.__contains__, asked):
            try:
                found[key] = self._type.validate_json(rows[key])
            except pydantic.ValidationError:
                unreadable += 1
        if unreadable:
            log.warning("%s: %d unreadable entries are ignored", self._path, unreadable)
        return found

    def put(self, values: Mapping[str, Value], *, replace: bool = True) -> None:
        """Store values; without `replace`, keys that already have a value keep it.

        Raises:
            SettingsError: the file is not such a store.
        """
        conflict = "REPLACE" if replace else "IGNORE"
        rows = [(key, self._type.dump_json(value).decode()) for key, value in values.items()]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._connected() as connection:
            connection.executemany(f"INSERT OR {conflict} INTO entries VALUES (?, ?)", rows)

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """One transaction."""
        try:
            opened = sqlite3.connect(self._path, timeout=_LOCK_TIMEOUT)
            with closing(opened) as connection, connection:
                connection.execute(
                    "CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY, value TEXT)"
                )
                yield connection
        except sqlite3.DatabaseError as error:
            raise SettingsError(
                f"{self._path}: expected a store of this program, got another kind of file or a "
                f"broken one ({error}); move it away and run again"
            ) from error


def files_fingerprint(files: Iterable[tuple[str, Path]]) -> str:
    """Sixteen hexadecimal digits of files: their names, sizes and contents.

    Small files are read whole, large ones in 64 pieces: fine-tuned weights differ in nearly all.

    Args:
        files: each with the name that counts, in the order that counts.
    """
    hashed = hashlib.sha256()
    for name, path in files:
        size = path.stat().st_size
        hashed.update(f"{name} {size} ".encode())
        with path.open("rb") as file:
            for start in range(0, size, max(size // _PIECES, _PIECE)):
                file.seek(start)
                hashed.update(file.read(_PIECE))
    return hashed.hexdigest()[:16]


def file_sha256(path: Path) -> str:
    """Hex digest of a file's bytes, as `sha256sum` prints it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
