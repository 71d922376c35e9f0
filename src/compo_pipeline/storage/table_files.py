"""Tables on disk: written part by part, as parquet with a checksum a page.

Equal rows give equal bytes, and a page whose bytes have changed since is refused.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compo_pipeline.run.engines import LOCAL, PrepareSettings, map_partitions
from compo_pipeline.run.progress import Meter
from compo_pipeline.storage.files import DamagedFileError, atomic_file
from compo_pipeline.storage.hashing import hash_of
from compo_pipeline.storage.records import check_columns, decoded, schema, to_table
from compo_pipeline.storage.tables import GROUP, Row, Table, all_batches, grouped, parquet_file

if TYPE_CHECKING:
    import pyarrow as pa

PART = 10_000
"""Rows that are computed together: what a kill loses at most."""


@dataclass(frozen=True)
class Parts(Iterable[Row]):
    """Rows of a table that `write_rows` computes in parts, so that it can resume after a kill.

    Finished parts stay on disk until the table is whole: after a kill, the next run computes those
    that are missing.
    """

    what: str
    """What is done, for the progress."""

    compute: Callable[[range], Iterable[Row]]
    """The rows of a part, by the numbers of what they are made of. Engines other than `local` send
    it to their workers."""

    count: int
    """Of what rows are made of."""

    fingerprint: str
    """Of everything that the rows depend on."""

    engine: PrepareSettings = LOCAL
    """What computes the parts of a table that has several."""

    def __iter__(self) -> Iterator[Row]:
        for part in self._ranges():
            yield from self.compute(part)

    def _ranges(self) -> list[range]:
        """The range of row numbers of each part."""
        return [range(start, min(start + PART, self.count)) for start in range(0, self.count, PART)]

    def files(self, folder: Path, row_type: type[Row]) -> list[Path]:
        """Compute the missing parts as Parquet files in a folder; returns all parts' files."""
        files = {folder / f"{part.start:09d}.parquet": part for part in self._ranges()}
        missing = {file: part for file, part in files.items() if not is_whole(file)}
        compute = partial(_compute_part, self.compute, row_type)
        with Meter(len(files), f"{self.what}, by {PART}", len(files) - len(missing)) as meter:
            tables = map_partitions(compute, missing.values(), self.engine)
            for file, table in zip(missing, tables, strict=True):
                write_table(file, [table], table.schema)
                meter.advance()
        return list(files)


def _compute_part(
    compute: Callable[[range], Iterable[Row]], row_type: type[Row], part: range
) -> pa.Table:
    """Compute the rows of one part as an Arrow table, which is cheap to send between processes."""
    import pyarrow as pa

    groups = (to_table(group, row_type) for group in grouped(compute(part)))
    return pa.concat_tables([to_table([], row_type), *groups])


@contextmanager
def resumable(folder: Path, fingerprint: str) -> Iterator[Path]:
    """Context manager: a folder for a computation's finished parts, which stays after a kill.

    After an error or a kill it stays, and the next computation with this fingerprint finds the
    parts. Those of others are removed.
    """
    own = folder / hash_of(fingerprint)
    own.mkdir(parents=True, exist_ok=True)
    for other in folder.iterdir():
        if other != own:
            shutil.rmtree(other)
    yield own
    shutil.rmtree(folder)


def write_rows(path: Path, rows: Iterable[Any], row_type: type) -> None:
    """Write rows as a Parquet table, atomically and in groups that fit into memory."""
    columns = schema(row_type)
    if isinstance(rows, Table):
        parts = (rows[start : start + GROUP] for start in range(0, len(rows), GROUP))
        write_table(
            path, (part.to_arrow().combine_chunks().cast(columns) for part in parts), columns
        )
    elif isinstance(rows, Parts) and rows.count > PART:
        with resumable(path.with_name(f".{path.name}.parts"), rows.fingerprint) as folder:
            files = rows.files(folder, row_type)
            write_table(path, map(read_table, files), columns)
    else:
        groups = (to_table(group, row_type) for group in grouped(rows))
        write_table(path, groups, columns)


def stream_rows(path: Path, row_type: type[Row]) -> Iterator[Row]:
    """Yield the rows of a table that `write_rows` wrote, in file order.

    Raises:
        DamagedFileError: its bytes have changed since, or it has other columns.
    """
    with parquet_file(path) as file:
        check_columns(file.schema_arrow, row_type)
        for batch in all_batches(file, GROUP):
            yield from decoded(batch, row_type)


def write_table(path: Path, groups: Iterable[pa.Table], columns: pa.Schema) -> None:
    """Write groups of Arrow rows as a Parquet file with a checksum a page, atomically."""
    import pyarrow.parquet as pq

    with (
        atomic_file(path) as temporary,
        pq.ParquetWriter(temporary, columns, write_page_checksum=True) as writer,
    ):
        for group in groups:
            writer.write_table(group)


def read_table(path: Path) -> pa.Table:
    """Read the Arrow table that `write_table` wrote.

    Raises:
        DamagedFileError: its bytes have changed since.
    """
    with parquet_file(path) as file:
        return file.read()


def is_whole(path: Path) -> bool:
    """Whether a table file exists and can be read."""
    try:
        read_table(path)
    except (FileNotFoundError, DamagedFileError):
        return False
    return True
