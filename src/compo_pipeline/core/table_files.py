"""Tables on disk: written part by part; equal rows give equal bytes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, cast

from compo_pipeline.core.engines import LOCAL, PrepareSettings, map_partitions
from compo_pipeline.core.hashing import hash_of
from compo_pipeline.core.parquet import batches, parquet_file, write_parquet
from compo_pipeline.core.progress import Meter
from compo_pipeline.core.records import check_columns, decoded, schema, to_table
from compo_pipeline.core.tables import GROUP, Row, Table, grouped

if TYPE_CHECKING:
    import pyarrow as pa

PART = 10_000
"""Rows that are computed together: what a kill loses at most."""


@dataclass(frozen=True)
class Parts(Generic[Row]):
    """Rows of a table that `write_rows` computes in parts, so that it can resume after a kill."""

    what: str
    """What is done, for the progress."""

    compute: Callable[[range], Iterable[Row]]
    """The rows of a part, by the numbers of what they are made of; it is sent to the workers."""

    count: int
    """Of what rows are made of."""

    fingerprint: str
    """Of everything that the rows depend on."""

    engine: PrepareSettings = LOCAL
    """What computes the parts."""


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


def write_rows(path: Path, rows: Iterable[Row] | Parts[Row], row_type: type[Row]) -> None:
    """Write rows as a Parquet table, atomically and in groups that fit into memory."""
    columns = schema(cast(type, row_type))
    if isinstance(rows, Parts):
        with resumable(path.with_name(f".{path.name}.parts"), rows.fingerprint) as folder:
            parts = map(_read, _compute(rows, folder, row_type))
            write_parquet(path, parts, columns)
    else:
        write_parquet(path, _groups(rows, row_type), columns)


def _compute(parts: Parts[Row], folder: Path, row_type: type[Row]) -> list[Path]:
    """Compute the missing parts as Parquet files in a folder; returns the files of all parts."""
    starts = range(0, parts.count, PART)
    files = {
        folder / f"{start:09d}.parquet": range(start, min(start + PART, parts.count))
        for start in starts
    }
    missing = {file: part for file, part in files.items() if not file.exists()}
    compute = partial(_compute_part, parts.compute, row_type)
    with Meter(parts.count, parts.what, parts.count - sum(map(len, missing.values()))) as meter:
        tables = map_partitions(compute, missing.values(), parts.engine)
        for (file, part), table in zip(missing.items(), tables, strict=True):
            write_parquet(file, [table], table.schema)
            meter.advance(len(part))
    return list(files)


def _compute_part(
    compute: Callable[[range], Iterable[Row]], row_type: type[Row], part: range
) -> pa.Table:
    """Compute the rows of one part as an Arrow table, which is cheap to send between processes."""
    import pyarrow as pa

    return pa.concat_tables([to_table([], row_type), *_groups(compute(part), row_type)])


def _groups(rows: Iterable[Any], row_type: type) -> Iterator[pa.Table]:
    """Yield rows as Arrow tables of at most `GROUP`."""
    if isinstance(rows, Table):
        parts = (rows[start : start + GROUP] for start in range(0, len(rows), GROUP))
        yield from (part.to_arrow().combine_chunks().cast(schema(row_type)) for part in parts)
    else:
        yield from (to_table(group, row_type) for group in grouped(rows))


def _read(path: Path) -> pa.Table:
    with parquet_file(path) as file:
        return file.read()


def stream_rows(path: Path, row_type: type[Row]) -> Iterator[Row]:
    """Yield the rows of a table that `write_rows` wrote, in file order.

    Raises:
        DamagedFileError: its bytes have changed since, or it has other columns.
    """
    with parquet_file(path) as file:
        check_columns(file.schema_arrow, row_type)
        for batch in batches(file, GROUP):
            yield from decoded(batch, row_type)
