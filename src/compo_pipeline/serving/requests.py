"""The request log: a row for each row that a served model answered, in Parquet files by hour.

`date=YYYY-MM-DD/hour=HH/<server>-<number>.parquet` (UTC, the hour of the request; `<server>` is the
id of a server process). `serving.request_log` writes them, and monitoring reads them.

    request, row                what was asked: id of the request, row of its table
    time, latency               when it was answered, and seconds of the whole request
    model, version, fingerprint what answered; a folder has no version
    task                        score, embed, rank or classify
    image_hash                  of the image's bytes, 16 hexadecimal digits
    width, height, bytes        of the image as it was sent
    image, text                 embeddings, of length 1; text is that of the best one where several
                                are compared, or of the best label
    candidates                  number of texts or labels that were compared
    cosine, margin              of image and text; margin is best minus second
    order                       candidates, the best first, at most 32
    tokens, words, unknown_words
                                of the text; unknown words are those that no training caption has
    caption, image_bytes        the text and the image, where `serving.log.content` asks for them
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from compo_pipeline.core.tables import batches, parquet_file, write_parquet

REQUESTS = pa.schema(
    [
        pa.field("request", pa.string(), nullable=False),
        pa.field("row", pa.int32(), nullable=False),
        pa.field("time", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("model", pa.string(), nullable=False),
        ("version", pa.int32()),
        pa.field("fingerprint", pa.string(), nullable=False),
        pa.field("task", pa.string(), nullable=False),
        pa.field("latency", pa.float32(), nullable=False),
        ("image_hash", pa.string()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("bytes", pa.int64()),
        ("image", pa.list_(pa.float16())),
        ("text", pa.list_(pa.float16())),
        ("candidates", pa.int32()),
        ("cosine", pa.float32()),
        ("margin", pa.float32()),
        ("order", pa.list_(pa.int32())),
        ("tokens", pa.int32()),
        ("words", pa.int32()),
        ("unknown_words", pa.int32()),
        ("caption", pa.string()),
        ("image_bytes", pa.binary()),
    ]
)
MOST_ORDERED = 32
"""Candidates in `order`."""
_AT_ONCE = 256  # rows, which may have images
_FOLDER = "date=%Y-%m-%d/hour=%H"


def hour_folder(time: datetime) -> str:
    """Path of the folder for an hour's files, relative to the request log."""
    return time.astimezone(UTC).strftime(_FOLDER)


def write_requests(path: Path, rows: pa.Table) -> None:
    """Write rows as a Parquet file of the request log, atomically.

    Args:
        path: path of the file, below `hour_folder`.
        rows: rows with the columns of `REQUESTS`.
    """
    texts = [name for name in REQUESTS.names if pa.types.is_string(REQUESTS.field(name).type)]
    write_parquet(path, [rows.cast(REQUESTS)], REQUESTS, compression="zstd", use_dictionary=texts)


def read_requests(
    folder: Path, since: datetime, until: datetime, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the request log's rows between two times as Arrow batches, hour by hour.

    Servers may write and delete files meanwhile.

    Args:
        folder: the log's folder.
        since: the time of the first row, with a time zone.
        until: the time before which the last row is.
        columns: names of the columns to read, in this order. None reads all.

    Raises:
        DamagedFileError: a file cannot be read, or is none of a request log.
    """
    chosen = list(columns or REQUESTS.names)
    for path in sorted(folder.glob("date=*/hour=*/*.parquet")):
        if not hour_folder(since) <= str(path.parent.relative_to(folder)) <= hour_folder(until):
            continue
        with suppress(FileNotFoundError), parquet_file(path) as file:
            if not file.schema_arrow.equals(REQUESTS):
                raise ValueError(f"expected the columns {', '.join(REQUESTS.names)}")
            for batch in batches(file, _AT_ONCE, [*chosen, "time"]):
                time = batch.column("time")
                # Bounds of Python's precision, which is that of the column.
                within = pc.and_(
                    pc.greater_equal(time, pa.scalar(since)), pc.less(time, pa.scalar(until))
                )
                if len(found := batch.filter(within).select(chosen)):
                    yield found
