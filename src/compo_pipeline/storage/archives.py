"""Images in tar archives and Parquet files, read in place: scanned once, nothing is unpacked.

The name of such an image is that of the archive and that of the member: `0.tar/000012.jpg`. In a
Parquet file with a column of images, as the hub's data sets have it (records {bytes, path}, or
bytes), the member is the column and the number of the row: `test.parquet/image/12`.
"""

from __future__ import annotations

import os
import re
import tarfile
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from io import BufferedReader
from itertools import accumulate, chain, islice
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from compo_pipeline.storage.files import read_json_or_none, write_json
from compo_pipeline.storage.remote import open_file, read_range, sidecar, size_and_version
from compo_pipeline.storage.untrusted import holds_images, parquet_file

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
_one_reader = Lock()


@dataclass(frozen=True, slots=True)
class Archive:
    """The members of an archive, and whether its end is missing.

    `members` has the place and size of each file's bytes; in a cut archive the last ones may lie
    beyond its end. In a Parquet file the place is the row, and the size is not known.
    """

    members: Mapping[str, tuple[int, int]]
    cut: bool


class _Members(Mapping[str, tuple[int, int]]):
    """Places and sizes by name, in the archive's order: the name and twenty bytes each."""

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


def samples(archive: Archive) -> dict[str, dict[str, str]]:
    """The members of WebDataset samples by their endings, by key: all of a name before its first
    period.
    """
    found: dict[str, dict[str, str]] = {}
    for member in archive.members:
        start, slash, name = member.rpartition("/")
        key, _, ending = name.partition(".")
        found.setdefault(f"{start}{slash}{key}", {})[ending.lower()] = member
    return found


def parted(name: str) -> tuple[str, str]:
    """The archive and the member of an image's name; the member is empty for a plain file."""
    found = _INSIDE.fullmatch(name)
    return (found[1], found[2]) if found else (name, "")


def scan(path: Path) -> Archive:
    """The members of an archive; an archive that has not changed is scanned once.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no such archive.
    """
    scanned = _scan_parquet if path.suffix == _PARQUET else _scan_tar
    return scanned(path, *size_and_version(path))


@lru_cache(_SCANNED)
def _scan_tar(path: Path, size: int, version: int) -> Archive:
    """The members of a tar archive, from the index of an earlier scan if there is one."""
    index = sidecar(path)
    known = read_json_or_none(index) if index else None
    members, cut = known or _read_headers(path, size)
    if index and not known:
        write_json(index, [members, cut], indent=None)
    last = max((place + length for place, length in members.values()), default=0)
    # Of an array of names each takes as much as the longest.
    longest = max(map(len, members), default=0)
    held = _Members(members) if longest <= _LONG else members
    # An empty block follows the last member.
    return Archive(held, cut or last > size - _BLOCK)


class _HeaderFile(BufferedReader):
    """A tar file for reading headers alone; sizes and offsets that they state are bounded."""

    def read(self, size: int | None = -1) -> bytes:
        """Read so many bytes; more than a header may have are refused."""
        if size is None or not 0 <= size <= _LONGEST_HEADER:
            # No HeaderError, which tarfile takes for the end of the archive.
            raise tarfile.TarError(f"a header of {size} bytes, at most {_LONGEST_HEADER} are read")
        return super().read(size)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to an offset, at most to the end of the file."""
        return super().seek(min(offset, os.fstat(self.fileno()).st_size), whence)


def _read_headers(path: Path, size: int) -> tuple[dict[str, tuple[int, int]], bool]:
    """Place and size of a tar's members, and whether its headers are cut."""
    members: dict[str, tuple[int, int]] = {}
    try:
        with (
            _HeaderFile(open_file(path).detach()) as file,
            tarfile.open(fileobj=file, mode="r:") as archive,
        ):
            try:
                for member in islice(archive, size // _BLOCK):
                    if member.isreg() and not member.issparse() and member.size >= 0:
                        place = member.offset_data, min(member.size, size)
                        members.setdefault(member.name, place)
            except tarfile.ReadError:
                return members, True
    except (tarfile.TarError, EOFError) as error:
        raise ValueError(f"{path} is not a tar archive: {error}") from error
    return members, False


def image_columns(file: pq.ParquetFile) -> list[str]:
    """Columns of a Parquet file whose cells are bytes, or records with bytes."""
    from pyarrow.types import is_struct

    return [
        field.name
        for field in file.schema_arrow
        if holds_images(field.type)
        and (not is_struct(field.type) or field.type.get_field_index("bytes") >= 0)
    ]


@lru_cache(_SCANNED)
def _scan_parquet(path: Path, size: int, version: int) -> Archive:
    """The images of a Parquet file as members `<column>/<row>`."""
    with parquet_file(path) as file:
        columns, rows = image_columns(file), _starts(file)[-1]
    return Archive({f"{name}/{row}": (row, 0) for name in columns for row in range(rows)}, False)


def read(path: Path, member: str) -> bytes:
    """The bytes of a member, fewer than its size where the archive is cut.

    Raises:
        KeyError: there is no such file in it.
        OSError: the archive cannot be read.
        ValueError: it is no such archive.
    """
    if path.suffix == _PARQUET:
        return _read_cell(path, member).content
    place, size = scan(path).members[member]
    return read_range(path, place, size)


def source_name(path: Path, member: str) -> str:
    """The name that a member had as a file; empty where a Parquet file does not tell.

    Raises:
        As `read`.
    """
    return _read_cell(path, member).name if path.suffix == _PARQUET else member


class _Cell(NamedTuple):
    """An image in a Parquet file: its bytes, none where there is no image, and its file's name."""

    content: bytes
    name: str


def _read_cell(path: Path, member: str) -> _Cell:
    """Read an image of a Parquet file, by the name `<column>/<row>`."""
    column, row = member.rsplit("/", 1)
    with _one_reader:
        # A forked process has a reader of its own: an open file's place is shared with it.
        reader = _cached_reader(path, *size_and_version(path), column, os.getpid())
        return reader.cell(int(row))


class _Reader:
    """The images of a column of a Parquet file, read row by row; the last ones are in memory.

    Images are wanted nearly in order. Another order costs time: a row group is read from its start.
    """

    def __init__(self, path: Path, column: str) -> None:
        self._path, self._column = path, column
        with parquet_file(path) as file:
            self._starts = _starts(file)
        self._held: dict[int, _Cell] = {}
        self._restart(0)

    def cell(self, row: int) -> _Cell:
        """The image of a row."""
        if row not in self._held:
            group = bisect_right(self._starts, row) - 1
            if not min(self._starts[group], row - _HELD_ROWS) <= self._next <= row:
                self._restart(group)
            try:
                self._advance(row)
            except ValueError:  # of a row group before it, perhaps
                self._restart(group)
                self._advance(row)
        return self._held[row]

    def _restart(self, group: int) -> None:
        """Start to read at a row group."""
        self._next = self._starts[group]
        self._cells = self._read_from(group)

    def _advance(self, row: int) -> None:
        """Read up to a row; the last ones stay in memory."""
        while self._next <= row:
            try:
                self._held[self._next] = next(self._cells)
            except ValueError:
                self._next = self._starts[-1]  # nothing follows: start again
                raise
            self._next += 1
            while len(self._held) > 1 and (
                len(self._held) > _HELD_ROWS
                or sum(len(held.content) for held in self._held.values()) > _HELD_BYTES
            ):
                del self._held[next(iter(self._held))]

    def _read_from(self, group: int) -> Iterator[_Cell]:
        """Images from a row group on, one by one."""
        groups = range(group, len(self._starts) - 1)
        with parquet_file(self._path) as file:
            for batch in chain.from_iterable(
                # One at a time: of several, a damaged one would spoil the others.
                file.iter_batches(1, row_groups=[each], columns=[self._column])
                for each in groups
            ):
                cell = batch.column(0)[0].as_py()
                if isinstance(cell, dict):
                    yield _Cell(cell["bytes"] or b"", cell.get("path") or "")
                else:
                    yield _Cell(cell or b"", "")
        raise ValueError(f"{self._path} ends before its last row")


@lru_cache(_READERS)
def _cached_reader(path: Path, size: int, version: int, column: str, process: int) -> _Reader:
    """The reader of a column; a changed file or another process has another one."""
    return _Reader(path, column)


def _starts(file: pq.ParquetFile) -> list[int]:
    """The first row of each row group, and the number of rows."""
    counts = (file.metadata.row_group(k).num_rows for k in range(file.num_row_groups))
    return list(accumulate(counts, initial=0))
