"""Parquet files: one reader and one writer, both with a checksum for each page."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compo_pipeline.core.files import DamagedFileError, atomic_file
from compo_pipeline.core.remote import open_file
from compo_pipeline.core.settings import PlainError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_BUFFER = 2**20  # bytes of a column that are read at a time


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
