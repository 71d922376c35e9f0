"""Images in tar archives and Parquet files, read in place: scanned once, nothing is unpacked.

The name of such an image is that of the archive and that of the member: `0.tar/000012.jpg`. In a
Parquet file with a column of images, as the hub's data sets have it (records {bytes, path}, or
bytes), the member is the column and the number of the row: `test.parquet/image/12`.
"""

from __future__ import annotations

import os
import re
import tarfile
import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from io import BufferedReader
from itertools import accumulate, islice
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from compo_pipeline.core.files import size_and_time
from compo_pipeline.core.remote import open_file
from compo_pipeline.core.tables import parquet_file
from compo_pipeline.core.untrusted import holds_images, path_below, shown

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_BLOCK = 512  # bytes; every member has a header of one or more
_SCANNED = 4096  # archives whose members are remembered
_LONG = 128  # characters of a member's name
_LONGEST_HEADER = 2**20  # bytes: of a long name or of attributes
_PARQUET = ".parquet"
_READERS = 4  # columns of Parquet files that are open
_HELD_ROWS, _HELD_BYTES = 64, 2**28  # images of each that are in memory, at most
_INSIDE = re.compile(r"(.*?\.(?:tar|parquet))/(.+)", re.DOTALL)
_WORDS = re.compile(r"(?<=[^/])(?:\.[A-Za-z_]\w*)+$")
_LITTER = ("__MACOSX", "Thumbs.db", "desktop.ini")
_one_reader = Lock()


@dataclass(frozen=True, slots=True)
class Archive:
    """Members of a tar archive or Parquet file by name, and its unreadable parts.

    `members` has the place and size of each file's bytes; in a damaged archive the last ones may
    lie beyond its end. In a Parquet file the place is the row, and the size is not known. `unread`
    names links, sparse files and further files of a name. `damage` says where the archive is
    damaged or cut off; it is empty for a whole one.
    """

    members: Mapping[str, tuple[int, int]]
    unread: Sequence[str] = ()
    damage: str = ""


class _Members(Mapping[str, tuple[int, int]]):
    """Memory-saving mapping from the name of an archive's member to its offset and size."""

    def __init__(self, members: Mapping[str, tuple[int, int]]) -> None:
        self._names = np.array([name.encode() for name in members], np.bytes_)
        self._order = np.argsort(self._names, kind="stable").astype(np.int32)
        self._places = np.array(list(members.values()), np.int64).reshape(-1, 2)

    def __getitem__(self, name: str) -> tuple[int, int]:
        wanted = name.encode()
        found = int(np.searchsorted(self._names, wanted, sorter=self._order))
        row = int(self._order[found]) if found < len(self._order) else -1
        if row < 0 or self._names[row] != wanted:
            raise KeyError(name)
        place, size = self._places[row].tolist()
        return place, size

    def __iter__(self) -> Iterator[str]:
        return (bytes(name).decode() for name in self._names)

    def __len__(self) -> int:
        return len(self._names)


class Sample(NamedTuple):
    """Member names of a WebDataset sample by ending, and the number of samples with its key."""

    members: dict[str, str]
    total: int


def samples(archive: Archive, endings: Collection[str] = ()) -> dict[str, Sample]:
    """WebDataset samples of an archive by key, without hidden files.

    A key ends before the ending of the member: one of the given endings, else what follows the last
    period. Of a member that is alone with its key, several parts such as `input.jpg` are the
    ending where other members have it too.
    """
    names = [*archive.members, *archive.unread]
    parts = {name: _key_and_ending(name, endings) for name in names if not _is_litter(name)}
    sharing = Counter(key for key, _ in parts.values())
    longer = {
        name: _with_words(*both)
        for name, both in parts.items()
        if sharing[both[0]] == 1 and both[1] not in endings
    }
    kinds = Counter(ending for _, ending in longer.values())
    parts |= {name: both for name, both in longer.items() if kinds[both[1]] > 1}
    found: dict[str, dict[str, list[str]]] = {}
    for name in names:
        if name in parts:
            key, ending = parts[name]
            found.setdefault(key, {}).setdefault(ending, []).append(name)
    readable = set(archive.members)
    return {
        key: Sample(
            {ending: own[0] for ending, own in endings.items() if own[0] in readable},
            max(map(len, endings.values())),
        )
        for key, endings in found.items()
    }


def _is_litter(name: str) -> bool:
    """Whether a member is hidden, or made by a file manager."""
    return any(part.startswith(".") or part in _LITTER for part in PurePosixPath(name).parts)


def _key_and_ending(name: str, endings: Collection[str]) -> tuple[str, str]:
    """Key and ending of a member: one of the given endings, else the last part of its name."""
    start, slash, own = name.rpartition("/")
    given = [each for each in endings if own.lower().endswith(f".{each.lower()}")]
    ending = max(given, key=len, default=own.rpartition(".")[2] if "." in own else "")
    key = own.removesuffix(own[-len(ending) - 1 :]) if ending else own
    return unicodedata.normalize("NFC", f"{start}{slash}{key}"), ending.lower()


def _with_words(key: str, ending: str) -> tuple[str, str]:
    """Key and ending with the words at the key's end, such as `.input`, as parts of the ending."""
    words = _WORDS.search(key)
    return (key[: words.start()], f"{words[0][1:].lower()}.{ending}") if words else (key, ending)


def split_member(name: str) -> tuple[str, str]:
    """Split an image's name into archive path and member name (empty for a plain file)."""
    found = _INSIDE.fullmatch(name)
    return (found[1], found[2]) if found else (name, "")


def is_there(root: Path, name: str) -> bool:
    """Whether an image is a file below a root, or in an archive there."""
    try:
        path, (archive, member) = path_below(root, name), split_member(name)
        return path.is_file() or (bool(member) and member in scan(root / archive).members)
    except (OSError, ValueError):
        return False


def scan(path: Path) -> Archive:
    """List the members of a tar archive or Parquet file.

    An unchanged file is scanned once.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no such archive.
    """
    scanned = _scan_parquet if path.suffix == _PARQUET else _scan_tar
    return scanned(path, *size_and_time(path))


@lru_cache(_SCANNED)
def _scan_tar(path: Path, size: int, version: int) -> Archive:
    """List the members of a tar archive."""
    members, unread, damage = _read_headers(path, size)
    # Of an array of names each takes as much as the longest.
    longest = max(map(len, members), default=0)
    return Archive(_Members(members) if longest <= _LONG else members, unread, damage)


class _HeaderFile(BufferedReader):
    """File object that reads only a tar archive's headers, with bounds on sizes and offsets."""

    def read(self, size: int | None = -1) -> bytes:
        """Read bytes of a header, and refuse to read more than the largest header may have."""
        if size is None or not 0 <= size <= _LONGEST_HEADER:
            # No HeaderError, which tarfile takes for the end of the archive.
            raise tarfile.TarError(f"a header of {size} bytes, at most {_LONGEST_HEADER} are read")
        return super().read(size)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move the read position, at most to the end of the file."""
        return super().seek(min(offset, os.fstat(self.fileno()).st_size), whence)


def _read_headers(path: Path, size: int) -> tuple[dict[str, tuple[int, int]], list[str], str]:
    """Offset and size of each file of a tar archive, names of other members, and the damage."""
    members: dict[str, tuple[int, int]] = {}
    unread: list[str] = []
    end = 0
    try:
        with (
            _HeaderFile(open_file(path).detach()) as file,
            tarfile.open(fileobj=file, mode="r:") as archive,
        ):
            with suppress(tarfile.ReadError):
                for member in islice(archive, size // _BLOCK):
                    name, place = member.name, (member.offset_data, min(member.size, size))
                    if member.islnk() and member.linkname in members:
                        place = members[member.linkname]
                    elif not member.isreg() or member.issparse() or member.size < 0:
                        unread += [] if member.isdir() else [name]
                        continue
                    end = max(end, sum(place))
                    if members.setdefault(name, place) != place:
                        unread.append(name)
            # Empty blocks alone follow the last member.
            file.seek(archive.offset)
            rest = iter(lambda: file.read(_LONGEST_HEADER), b"")
            whole = end <= size - _BLOCK and not any(part.strip(b"\0") for part in rest)
    except (tarfile.TarError, EOFError) as error:
        raise ValueError(f"{path} is not a tar archive: {error}") from error
    if whole:
        return members, unread, ""
    last = f", behind {shown(next(reversed(members)))}" if members else ""
    damage = f"damaged or cut off at byte {min(archive.offset, size)} of {size}{last}"
    return members, unread, damage


def image_columns(file: pq.ParquetFile) -> list[str]:
    """Names of a Parquet file's columns whose cells are bytes, or structs with a field `bytes`."""
    from pyarrow.types import is_struct

    return [
        field.name
        for field in file.schema_arrow
        if holds_images(field.type)
        and (not is_struct(field.type) or field.type.get_field_index("bytes") >= 0)
    ]


@lru_cache(_SCANNED)
def _scan_parquet(path: Path, size: int, version: int) -> Archive:
    """List the images of a Parquet file as members named `<column>/<row>`."""
    with parquet_file(path, trusted=False) as file:
        columns, rows = image_columns(file), _group_starts(file)[-1]
    return Archive({f"{name}/{row}": (row, 0) for name in columns for row in range(rows)})


def read(path: Path, member: str) -> bytes:
    """Read the bytes of an archive's member.

    Raises:
        KeyError: there is no such file in it.
        OSError: the archive cannot be read.
        ValueError: it is no such archive, or ends before the member does.
    """
    if path.suffix == _PARQUET:
        return _read_cell(path, member).content
    place, size = scan(path).members[member]
    with open_file(path) as file:
        file.seek(place)
        content = file.read(size)
    if len(content) < size:
        raise ValueError(f"{member}: the archive ends before it does")
    return content


def source_name(path: Path, member: str) -> str:
    """Original file name of an archive's member, empty if a Parquet file does not state it.

    Raises:
        As `read`.
    """
    return _read_cell(path, member).name if path.suffix == _PARQUET else member


class _Cell(NamedTuple):
    """Bytes of an image in a Parquet file (empty if it has none), and its original file name."""

    content: bytes
    name: str


def _read_cell(path: Path, member: str) -> _Cell:
    """Read the image of a Parquet file that is named `<column>/<row>`."""
    column, row = member.rsplit("/", 1)
    with _one_reader:
        # A forked process has a reader of its own: an open file's place is shared with it.
        reader = _cached_reader(path, *size_and_time(path), column, os.getpid())
        return reader.cell(int(row))


class _ColumnReader:
    """Reads the images of a Parquet column row by row, and caches the last ones in memory.

    Images are wanted nearly in order. Another order costs time: a row group is read from its start.
    """

    def __init__(self, path: Path, column: str) -> None:
        self._path, self._column = path, column
        with parquet_file(path, trusted=False) as file:
            self._starts = _group_starts(file)
        self._held: dict[int, _Cell] = {}
        self._group, self._next = -1, 0
        self._cells: Iterator[_Cell] = iter(())

    def cell(self, row: int) -> _Cell:
        """The image of a row, from the cache or read from the file."""
        if row not in self._held:
            group = bisect_right(self._starts, row) - 1
            if group != self._group or row < self._next:
                self._group, self._next = group, self._starts[group]
                self._cells = self._read(group)
            try:
                while self._next <= row:
                    self._held[self._next] = next(self._cells)
                    self._next += 1
                    while len(self._held) > 1 and (
                        len(self._held) > _HELD_ROWS
                        or sum(len(held.content) for held in self._held.values()) > _HELD_BYTES
                    ):
                        del self._held[next(iter(self._held))]
            except ValueError:
                self._group = -1  # nothing follows: start again
                raise
        return self._held[row]

    def _read(self, group: int) -> Iterator[_Cell]:
        """Yield the images of a row group."""
        with parquet_file(self._path, trusted=False) as file:
            # One at a time: of several, a damaged one would spoil the others.
            for batch in file.iter_batches(1, row_groups=[group], columns=[self._column]):
                cell = batch.column(0)[0].as_py()
                if isinstance(cell, dict):
                    yield _Cell(cell["bytes"] or b"", cell.get("path") or "")
                else:
                    yield _Cell(cell or b"", "")
        raise ValueError(f"{self._path} ends before its last row")


@lru_cache(_READERS)
def _cached_reader(path: Path, size: int, version: int, column: str, process: int) -> _ColumnReader:
    """The cached reader of a Parquet column, one for each process and version of the file."""
    return _ColumnReader(path, column)


def _group_starts(file: pq.ParquetFile) -> list[int]:
    """Number of the first row of each row group of a Parquet file, and last the number of rows."""
    counts = (file.metadata.row_group(k).num_rows for k in range(file.num_row_groups))
    return list(accumulate(counts, initial=0))
