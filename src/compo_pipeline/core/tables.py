"""Parquet files, and rows of a table as a sequence: nothing is decoded before it is asked for.

A large file is memory-mapped, through a copy in arrow's own format beside it.
"""

from __future__ import annotations

import hashlib
import logging
import mmap
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from compo_pipeline.core.files import DamagedFileError, atomic_file, size_and_time
from compo_pipeline.core.records import (
    Caption,
    check_columns,
    decoded,
    schema,
    to_table,
)
from compo_pipeline.core.remote import open_file
from compo_pipeline.core.seeding import digest
from compo_pipeline.core.settings import PlainError, SettingsError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from numpy.typing import NDArray

Row = TypeVar("Row")

_BUFFER = 2**20  # bytes of a column that are read at a time
BATCH = 10_000  # rows of an arrow batch
GROUP = 5_000  # rows in memory as objects while they are written
_MAPPED = 64 * 2**20  # bytes of a table, decompressed, from which on it is memory-mapped

HELD_OUT = "held_out"
"""Split of the rows that a sample leaves, where `foils.carve` asks for some."""
CARVED = "carved"
"""Split of the rows that would train, but for `foils.carve`."""

Splits = str | Sequence[str]
"""A split, or several."""

log = logging.getLogger(__name__)


@contextmanager
def parquet_file(path: Path, *, trusted: bool = True) -> Iterator[pq.ParquetFile]:
    """Context manager: open a Parquet file for reading.

    The checksum of each page is verified.

    Args:
        path: path of the file, which may be in object storage.
        trusted: whether this program wrote the file. Another one may not name more rows than it has
            bytes, and its absence is an error like damage.

    Raises:
        DamagedFileError: it cannot be read, now or later; a page's bytes have changed; or the
            caller raises a ValueError, as for other columns.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # A page of a column is in memory at a time, not all that a row group has of it.
        with (
            open_file(path) as opened,
            pq.ParquetFile(
                opened, buffer_size=_BUFFER, pre_buffer=False, page_checksum_verification=True
            ) as file,
        ):
            rows = sum(file.metadata.row_group(k).num_rows for k in range(file.num_row_groups))
            if not trusted and rows > path.stat().st_size:
                raise ValueError(f"it names {rows} rows in {path.stat().st_size} bytes")
            yield file
    except (OSError, ValueError, OverflowError, pa.ArrowException) as error:
        # The system's errors, such as of a missing file, have a number; Arrow's have none.
        if isinstance(error, PlainError) or (trusted and getattr(error, "errno", None)):
            raise
        remedy = "" if trusted else "; fetch it again"
        raise DamagedFileError(path, " ".join(str(error).split()) + remedy) from error


def batches(
    file: pq.ParquetFile,
    size: int,
    columns: Sequence[str] | None = None,
    most_bytes: int = sys.maxsize,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of an open Parquet file, or some of their columns, as Arrow batches.

    Args:
        file: file that `parquet_file` opened.
        size: rows of a batch, at most.
        columns: names of the columns to read. None reads all.
        most_bytes: largest size of all batches together, in bytes.

    Raises:
        ValueError: there are more bytes, or fewer rows than the file's metadata counts.
    """
    rows = read = 0
    for batch in file.iter_batches(size, columns=columns):
        rows, read = rows + len(batch), read + batch.nbytes
        if read > most_bytes:
            raise ValueError(f"it holds more than {most_bytes} bytes")
        yield batch
    # pyarrow ends without an error at a column that is short, whose pages' size has changed.
    if rows != file.metadata.num_rows:
        raise ValueError(f"it has {rows} rows, expected {file.metadata.num_rows}")


def write_parquet(
    path: Path, groups: Iterable[pa.Table], columns: pa.Schema, **options: Any
) -> None:
    """Write groups of Arrow rows as a Parquet file, atomically.

    Equal rows give equal bytes.

    Args:
        path: path of the file.
        groups: tables, each a row group.
        columns: schema of the columns.
        options: options of pyarrow's `ParquetWriter`.
    """
    import pyarrow.parquet as pq

    with (
        atomic_file(path) as temporary,
        pq.ParquetWriter(temporary, columns, write_page_checksum=True, **options) as writer,
    ):
        for group in groups:
            writer.write_table(group)


class Table(Sequence[Row]):
    """Sequence of rows of one type over an Arrow table.

    Rows are decoded when they are accessed.

    Args:
        row_type: a dataclass of `compo_pipeline.core.records`, or one like them.
        columns: the arrow table.
        numbers: numbers of the rows, in any order. All by default.
        source: the file and its copy, where another process may open the table itself.
    """

    def __init__(
        self,
        row_type: type[Row],
        columns: pa.Table,
        numbers: range | NDArray[np.int64] | None = None,
        source: tuple[Path, Path | None] | None = None,
    ) -> None:
        import numpy as np

        self.row_type, self._columns, self._source = row_type, columns, source
        self._numbers = range(len(columns)) if numbers is None else numbers
        self._batches = columns.to_batches()
        self._arrays = [batch.columns for batch in self._batches]
        self._starts = np.cumsum([0, *map(len, self._batches)])

    @classmethod
    def open(cls, path: Path, row_type: type[Row], copy: Path | None = None) -> Table[Row]:
        """Open the table file that `write_rows` wrote.

        A large file is memory-mapped.

        Args:
            path: the file.
            row_type: class of the rows.
            copy: place of the memory-mapped copy of a large table. By default beside the table.

        Raises:
            DamagedFileError: its bytes have changed since, or it has other columns.
        """
        with parquet_file(path) as file:
            check_columns(file.schema_arrow, row_type)
            groups = range(file.num_row_groups)
            if sum(file.metadata.row_group(group).total_byte_size for group in groups) <= _MAPPED:
                return cls(row_type, file.read(), source=(path, copy))
            copy = copy or path.with_suffix(".arrow")
            _, written = size_and_time(path)  # the copy gets the same time
            if not copy.exists() or size_and_time(copy)[1] != written:
                with atomic_file(copy) as temporary:
                    with temporary.open("wb") as sink:
                        _write_arrow(sink, batches(file, BATCH), schema(cast(type, row_type)))
                    os.utime(temporary, ns=(written, written))
        with copy.open("rb") as mapped:
            return cls(row_type, _read_arrow(mapped), source=(path, copy))

    @classmethod
    def of(cls, rows: Iterable[Row], row_type: type[Row]) -> Table[Row]:
        """Make a Table of rows in memory.

        A Table is returned unchanged.
        """
        return rows if isinstance(rows, Table) else cls(row_type, to_table(rows, row_type))

    @classmethod
    def joined(cls, tables: Sequence[Table[Row]]) -> Table[Row]:
        """Concatenate tables of one row type."""
        import pyarrow as pa

        return cls(tables[0].row_type, pa.concat_tables(table.to_arrow() for table in tables))

    @classmethod
    def spilled(cls, rows: Iterable[Row], row_type: type[Row], folder: Path | None) -> Table[Row]:
        """Make a memory-mapped table of rows in an unnamed temporary file."""
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        columns = schema(cast(type, row_type))
        groups = (to_table(group, row_type).to_batches() for group in grouped(rows))
        batches = rows.batches() if isinstance(rows, Table) else chain.from_iterable(groups)
        with TemporaryFile(dir=folder) as file:
            _write_arrow(file, batches, columns)
            file.flush()
            return cls(row_type, _read_arrow(file))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled without rows where they are in a file."""
        if self._source is None:
            return Table, (self.row_type, self._columns, self._numbers)
        return _reopen, (self.row_type, self._numbers, *self._source)

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, place: int) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> Table[Row]: ...
    def __getitem__(self, place: int | slice) -> Row | Table[Row]:
        if isinstance(place, slice):
            return self._with_numbers(self._numbers[place])
        number = int(self._numbers[place])
        batch = int(self._starts.searchsorted(number, "right")) - 1
        within = number - int(self._starts[batch])
        values = (column[within].as_py() for column in self._arrays[batch])
        return self.row_type(*(tuple(one) if type(one) is list else one for one in values))

    def __iter__(self) -> Iterator[Row]:
        for batch in self.batches():
            yield from decoded(batch, self.row_type)

    def batches(self, *names: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows as Arrow batches of at most 10,000, with all or the named columns."""
        import numpy as np

        for start in range(0, len(self), BATCH):
            numbers = self._numbers[start : start + BATCH]
            places = np.asarray(numbers)
            of = self._starts.searchsorted(places, "right") - 1
            for some in np.split(places, np.flatnonzero(np.diff(of)) + 1):
                batch = int(self._starts.searchsorted(some[0], "right")) - 1
                within = self._batches[batch].select(names) if names else self._batches[batch]
                first = int(some[0] - self._starts[batch])
                if isinstance(numbers, range) and numbers.step == 1:
                    yield within.slice(first, len(some))
                else:
                    yield within.take(some - self._starts[batch])

    def column(self, name: str) -> pa.ChunkedArray:
        """The values of one column as an Arrow array."""
        values, numbers = self._columns.column(name), self._numbers
        if isinstance(numbers, range) and numbers.step == 1:
            return values.slice(numbers.start, len(numbers))
        return values.take(list(numbers) if isinstance(numbers, range) else numbers)

    def to_arrow(self) -> pa.Table:
        """Convert all rows to a pyarrow table."""
        import pyarrow as pa

        return pa.Table.from_batches(self.batches(), self._columns.schema)

    def with_columns(self, **columns: pa.ChunkedArray) -> Table[Row]:
        """Copy of the table in memory with other values [n] in some columns."""
        table = self.to_arrow()
        for name, values in columns.items():
            place = table.schema.get_field_index(name)
            table = table.set_column(place, table.schema.field(name), values)
        return Table(self.row_type, table)

    def codes(self, name: str) -> NDArray[np.int32]:
        """Integer codes [n] of the rows by a column's value: equal codes for equal values.

        They are counted in the order in which the values come first.
        """
        return codes(self.column(name))

    def where(self, chosen: NDArray[np.bool_]) -> Table[Row]:
        """The rows where a mask [n] is true."""
        return self if chosen.all() else self.take(chosen.nonzero()[0])

    def having(self, name: str, values: Iterable[Any]) -> Table[Row]:
        """The rows whose value in a column is one of the given values."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        column = self.column(name)
        wanted = pa.array(values, type=column.type)
        return self.where(np.asarray(pc.is_in(column, value_set=wanted), dtype=bool))

    def take(self, places: NDArray[np.integer[Any]]) -> Table[Row]:
        """The rows at the given indices, in the order of the indices."""
        import numpy as np

        return self._with_numbers(np.asarray(self._numbers)[places])

    def _with_numbers(self, numbers: range | NDArray[np.int64]) -> Table[Row]:
        """A table of other row numbers over the same Arrow data."""
        return Table(self.row_type, self._columns, numbers, self._source)

    def places(self, name: str, values: pa.ChunkedArray) -> NDArray[np.int64]:
        """Index of the first row with each of the values [k] in a column, or -1."""
        import numpy as np
        import pyarrow.compute as pc

        found = pc.index_in(values, value_set=self.column(name)).fill_null(-1)
        return np.asarray(found, dtype=np.int64)

    @property
    def fingerprint(self) -> str:
        """Hash of the rows' contents, 16 hexadecimal digits."""
        hashed = hashlib.sha256()
        for batch in self.batches():
            hashed.update(batch.serialize())
        return hashed.hexdigest()[:16]


def _reopen(
    row_type: type[Row], numbers: range | NDArray[np.int64], path: Path, copy: Path | None
) -> Table[Row]:
    """Open the file of an unpickled table again, and select its rows."""
    return Table.open(path, row_type, copy)._with_numbers(numbers)


def codes(values: pa.ChunkedArray) -> NDArray[np.int32]:
    """Integer codes [n] of an Arrow column: equal for equal values, numbered as they occur."""
    import numpy as np

    # The chunks share one dictionary.
    parts = [chunk.indices.to_numpy() for chunk in values.dictionary_encode().chunks]
    return np.concatenate([np.empty(0, np.int32), *parts])


class Groups(Mapping[str, Sequence[Row]]):
    """Mapping from the text in one column of a table to all rows that have this text.

    It takes twelve bytes a row.
    """

    def __init__(self, table: Table[Row], name: str = "sample_id") -> None:
        import numpy as np

        self._table, self._name = table, name
        texts = (text for batch in table.batches(name) for text in batch.column(0).to_pylist())
        hashes = np.fromiter(map(digest, texts), np.uint64, len(table))
        order = np.argsort(hashes, kind="stable")
        self._order, self._hashes = order.astype(np.int32), hashes[order]

    def __getitem__(self, text: str) -> list[Row]:
        """All rows with a text, in their order."""
        import numpy as np

        wanted = np.uint64(digest(text))
        first = self._hashes.searchsorted(wanted, "left")
        last = self._hashes.searchsorted(wanted, "right")
        found = (self._table[int(number)] for number in self._order[first:last])
        rows = [row for row in found if getattr(row, self._name) == text]
        if not rows:
            raise KeyError(text)
        return rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._table.column(self._name).unique().to_pylist())

    def __len__(self) -> int:
        return len(self._table.column(self._name).unique())


class ById(Mapping[str, Row]):
    """Mapping from `sample_id` to the table's row with this id, the last one of several."""

    def __init__(self, table: Table[Row]) -> None:
        self._table, self._rows = table, Groups(table)

    def __getitem__(self, text: str) -> Row:
        return self._rows[text][-1]

    def __iter__(self) -> Iterator[str]:
        return iter(self._table.column("sample_id").to_pylist())

    def __len__(self) -> int:
        return len(self._table)


def splits_of(named: Splits) -> tuple[str, ...]:
    """The name of one split, or the names of several splits, as a tuple."""
    return (named,) if isinstance(named, str) else tuple(named)


def split_rows(captions: Iterable[Caption], split: Splits) -> Table[Caption]:
    """Caption rows of one or several splits that have at least one sentence."""
    import numpy as np
    import pyarrow.compute as pc

    table = Table.of(captions, Caption)
    own = table.having("split", splits_of(split))
    written = pc.greater(pc.list_value_length(own.column("sentences")), 0)
    rows = own.where(np.asarray(written, dtype=bool))
    if len(rows) < len(own):
        names = "', '".join(splits_of(split))
        log.warning("%d captions of '%s' have no sentence.", len(own) - len(rows), names)
    return rows


def training_rows(captions: Iterable[Caption], split: Splits) -> Table[Caption]:
    """Caption rows of the training splits that have a sentence.

    Raises an error if there are none.

    Raises:
        SettingsError: there is none.
    """
    table = Table.of(captions, Caption)
    rows = split_rows(table, split)
    if not rows:
        named = "', '".join(splits_of(split))
        raise SettingsError(
            f"views.split: no valid caption is of the split '{named}' (splits: "
            f"{sorted(table.column('split').unique().to_pylist())}); see data.splits and the "
            "quarantine table"
        )
    return rows


def held_out_note(captions: Iterable[Caption], trains: Splits) -> str | None:
    """Note for reports on how many rows are held out for foils, or None if there are none.

    Args:
        captions: valid rows of all splits.
        trains: split that trains, or several.
    """
    table = Table.of(captions, Caption)
    carved, left = (len(table.having("split", [name])) for name in (CARVED, HELD_OUT))
    if not carved or CARVED in splits_of(trains):
        return f"{left:,} that the sample leaves are held out for foils" if left else None
    beside = f", beside {left:,} that the sample leaves" if left else ""
    return f"not the published rows: {carved:,} are held out for foils{beside}"


def grouped(rows: Iterable[Row], size: int | None = None) -> Iterator[list[Row]]:
    """Yield rows in lists of at most `size`, by default 5,000."""
    remaining = iter(rows)
    return iter(lambda: list(islice(remaining, size or GROUP)), [])


def _write_arrow(sink: Any, batches: Iterable[pa.RecordBatch], columns: pa.Schema) -> None:
    """Write Arrow batches into an open file, in the Arrow IPC format."""
    import pyarrow as pa

    with pa.ipc.new_file(sink, columns) as writer:
        for batch in batches:
            writer.write_batch(batch)


def _read_arrow(file: Any) -> pa.Table:
    """Memory-map an open Arrow IPC file and return its table."""
    import pyarrow as pa

    content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return pa.ipc.open_file(pa.py_buffer(content)).read_all()
