"""Stores of values that are computed once: a kill loses none."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pydantic

from compo_pipeline.configuration.settings import SettingsError
from compo_pipeline.storage.files import DamagedFileError, atomic_file, naming_full_disk
from compo_pipeline.storage.hashing import hash_of, tensors_hash

if TYPE_CHECKING:
    from torch import Tensor

Value = TypeVar("Value")

_HASH = "sha256"  # among the metadata of a safetensors file
_LOCK_TIMEOUT = 60.0  # seconds to wait for another process's write

log = logging.getLogger(__name__)


class KeyValueStore(Generic[Value]):
    """Key-value store in one SQLite file, safe to share between threads and processes.

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
        """Stored values by key, for the given keys; those without a readable value are left out.

        Raises:
            SettingsError: the file is not such a store.
        """
        if not self._path.exists():
            return {}
        asked = list(keys)
        query = "SELECT key, value FROM entries WHERE key IN (SELECT value FROM json_each(?))"
        with self._entries() as entries:
            rows: dict[str, Any] = dict(entries.execute(query, [json.dumps(asked)]))
        found, unreadable = {}, 0
        for key in filter(rows.__contains__, asked):
            hashed, _, text = str(rows[key]).partition(" ")
            try:
                if hashed != hash_of(key, text):
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
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._entries() as entries:
            texts = {key: self._type.dump_json(value).decode() for key, value in values.items()}
            entries.executemany(
                query, [(key, f"{hash_of(key, text)} {text}") for key, text in texts.items()]
            )

    @contextmanager
    def many_writes(self) -> Iterator[None]:
        """Context manager that makes many `put` calls fast: SQLite's log stays open until the end.

        A killed process still loses none; a machine that loses its power may lose the last of them.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._entries():
            yield

    @contextmanager
    def _entries(self) -> Iterator[sqlite3.Connection]:
        """Context manager: one transaction on the table `entries`, which is created if missing."""
        try:
            with (
                naming_full_disk(self._path),
                closing(sqlite3.connect(self._path, timeout=_LOCK_TIMEOUT)) as connection,
                connection,
            ):
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute("PRAGMA synchronous=NORMAL")
                connection.execute(
                    "CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY, value TEXT)"
                )
                yield connection
        except sqlite3.DatabaseError as error:
            raise SettingsError(
                f"{self._path}: expected a store of this program, got another kind of file or a "
                f"damaged one ({error}); move it away and run again"
            ) from error


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
        for file in self._files():
            try:
                metadata, tensors = read_tensors(file)
            except DamagedFileError as error:
                log.warning("%s; its rows are computed again.", error.message)
                file.unlink()
            else:
                yield json.loads(metadata["keys"]), tensors

    def add(self, keys: Iterable[str], tensors: Mapping[str, Tensor]) -> None:
        """Store the tensors' rows of new keys as one more file, atomically.

        Args:
            keys: n keys.
            tensors: by name, each [n, ...].
        """
        number = max((int(file.stem) + 1 for file in self._files()), default=0)
        with atomic_file(self.folder / f"{number:04d}.safetensors") as temporary:
            write_tensors(temporary, tensors, {"keys": json.dumps(list(keys))})

    def _files(self) -> list[Path]:
        """The safetensors files of the store, sorted by name."""
        return sorted(self.folder.glob("*.safetensors"))


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors and metadata as a safetensors file, with a hash of both."""
    from safetensors.torch import save_file

    own = {**metadata, _HASH: tensors_hash(tensors, metadata)}
    save_file(dict(tensors), path, metadata=own)


def read_tensors(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Read metadata and tensors of a file of `write_tensors`.

    Raises:
        DamagedFileError: they do not fit their hash, or another version wrote them.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise DamagedFileError(path, str(error)) from error
    if metadata.pop(_HASH, "") != tensors_hash(tensors, metadata):
        raise DamagedFileError(path, "its content does not fit its hash")
    return metadata, tensors
