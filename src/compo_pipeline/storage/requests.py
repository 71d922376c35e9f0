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

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from compo_pipeline.storage.files import atomic_file
from compo_pipeline.storage.untrusted import path_below, read_batches

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
_NULLABLE = frozenset(field.name for field in REQUESTS if field.nullable)
_FOLDER = "date=%Y-%m-%d/hour=%H"

log = logging.getLogger(__name__)


def hour_folder(time: datetime) -> str:
    """Path of the folder for an hour's files, relative to the request log."""
    return time.astimezone(UTC).strftime(_FOLDER)


def write_requests(path: Path, rows: pa.Table) -> None:
    """Write rows as a Parquet file of the request log, atomically.

    Args:
        path: of the file, below `hour_folder`.
        rows: with the columns of `REQUESTS`.
    """
    # A file of fewer bytes than rows is refused when it is read.
    compression = {name: "none" if name == "row" else "zstd" for name in REQUESTS.names}
    texts = [name for name in REQUESTS.names if pa.types.is_string(REQUESTS.field(name).type)]
    with atomic_file(path) as temporary:
        pq.write_table(
            rows.cast(REQUESTS),
            temporary,
            compression=compression,
            use_dictionary=texts,
            write_page_checksum=True,
        )


def read_requests(
    folder: Path,
    since: datetime,
    until: datetime,
    skipped: Counter[str],
    columns: Sequence[str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the request log's rows between two times as Arrow batches, hour by hour.

    A file that cannot be read gives no row and is counted. Servers may write and delete files
    meanwhile.

    Args:
        folder: the log's folder.
        since: the time of the first row, with a time zone.
        until: the time before which the last row is.
        skipped: gets the number of files that were not read, by reason.
        columns: names of those that are read, in this order; None reads all.
    """
    chosen = list(REQUESTS.names if columns is None else columns)
    read = chosen if "time" in chosen else [*chosen, "time"]
    hours = since.astimezone(UTC).replace(minute=0, second=0, microsecond=0), until
    for path in sorted(folder.glob("date=*/hour=*/*.parquet")):
        try:
            hour = datetime.strptime(f"{path.parent.relative_to(folder)} +0000", f"{_FOLDER} %z")
            if not hours[0] <= hour < hours[1]:
                continue
            inside = path_below(folder, str(path.relative_to(folder)))
            batches = list(read_batches(inside, REQUESTS, _NULLABLE, chosen=read))
        except ValueError as error:
            log.warning("Not read: %s", error)
            reason = "deleted meanwhile" if not path.exists() else str(error)
            skipped[reason.replace(f"{path} ", "").replace(f"{path}", path.name)] += 1
            continue
        for batch in batches:
            time = batch.column("time")
            # Bounds of Python's precision, which is that of the column.
            within = pc.and_(
                pc.greater_equal(time, pa.scalar(since)), pc.less(time, pa.scalar(until))
            )
            batch = batch.filter(within).select(chosen)
            if len(batch):
                yield batch
