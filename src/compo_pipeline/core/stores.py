"""On-disk caches of computed values and tensors, which survive a killed process."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pydantic

from compo_pipeline.core.files import DamagedFileError, atomic_file, is_full_disk
from compo_pipeline.core.hashing import hash_of, tensors_hash
from compo_pipeline.core.settings import SettingsError

if TYPE_CHECKING:
    from torch import Tensor

Value = TypeVar("Value")

_HASH = "sha256"  # among the metadata of a safetensors file
_AT_ONCE = 2048  # rows of tensors that a killed run loses at most
_LOCK_TIMEOUT = 60.0  # seconds to wait for another process's write

log = logging.getLogger(__name__)


class KeyValueStore(Generic[Value]):
    """Key-value store in one SQLite file, safe to share between threads and processes.

    Values are committed before `put` returns, so a process may be killed at any moment. A key
    must cover everything that its value depends on; deleting the file is always safe.
    """

    def __init__(self, path: Path, value_type: type[Value]) -> None:
        """Name the file.

        The first `put` creates it.

        Args:
            path: the SQLite file.
            value_type: a type that pydantic converts to and from JSON, such as a dataclass, a
                NamedTuple or `str`.
        """
        self._path = path
        self._type: pydantic.TypeAdapter[Value] = pydantic.TypeAdapter(value_type)

    def get(self, keys: Iterable[str]) -> dict[str, Value]:
        """Stored values by key, for the given keys.

        Those without a readable value are left out.

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
        """Store values by key.

        With `replace` false, keys that already have a value keep it.

        Raises:
            SettingsError: the file is not such a store.
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
            if is_full_disk(error):
                raise
            raise SettingsError(
                f"{self._path}: expected a store of this program, got another kind of file or a "
                f"damaged one ({error}); move it away and run again"
            ) from error


class TensorStore:
    """Rows of tensors by key, in memory and in a folder of safetensors files.

    Files are added, and none changes; deleting the folder is always safe. A key must cover
    everything that its rows depend on.

    Args:
        folder: folder of the files. Those that exist are read. None stores none.
        wanted: keys whose rows are read. None reads all.
    """

    def __init__(self, folder: Path | None, wanted: Container[str] | None = None) -> None:
        self._folder = folder
        self._blocks: list[Mapping[str, Tensor]] = []
        self.rows: dict[str, int] = {}
        """Number of the row of each key, which they are in the order of."""
        for file in sorted(folder.glob("*.safetensors")) if folder else ():
            try:
                metadata, tensors = read_tensors(file)
            except DamagedFileError as error:
                log.warning("%s; its rows are computed again.", error.message)
                file.unlink()
                continue
            keys = json.loads(metadata["keys"])
            new = [
                (row, key)
                for row, key in enumerate(keys)
                if key not in self.rows and (wanted is None or key in wanted)
            ]
            rows = [row for row, _ in new]
            self._append((key for _, key in new), {name: tensors[name][rows] for name in tensors})
        self._stored = len(self.rows)

    def _append(self, keys: Iterable[str], tensors: Mapping[str, Tensor]) -> None:
        self.rows.update(zip(keys, count(len(self.rows))))
        self._blocks.append(tensors)

    def add(self, keys: Iterable[str], tensors: Mapping[str, Tensor]) -> None:
        """Add the rows [n, ...] of n new keys.

        A kill loses at most 2,048 of them.
        """
        self._append(keys, tensors)
        if len(self.rows) - self._stored >= _AT_ONCE:
            self.save()

    def tensors(self) -> Mapping[str, Tensor]:
        """All rows, by the tensors' names."""
        import torch

        if len(self._blocks) > 1:
            names = self._blocks[0]
            self._blocks = [{name: torch.cat([b[name] for b in self._blocks]) for name in names}]
        return self._blocks[0] if self._blocks else {}

    def save(self) -> None:
        """Store the new rows as one more file, atomically."""
        keys = list(self.rows)[self._stored :]
        if self._folder and keys:
            new = {name: rows[self._stored :] for name, rows in self.tensors().items()}
            with atomic_file(self._folder / f"{hash_of(keys)}.safetensors") as temporary:
                write_tensors(temporary, new, {"keys": json.dumps(keys)})
            self._stored = len(self.rows)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors and metadata as a safetensors file, with a hash of both."""
    from safetensors.torch import save_file

    own = {**metadata, _HASH: tensors_hash(tensors, metadata)}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata=own)


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
