"""The request log: a row for each row that a served model answered, in Parquet files by hour.

`date=YYYY-MM-DD/hour=HH/<server>-<number>.parquet` (UTC, the hour of the request; `<server>` is the
id of a server process). `<server>.dropped.json` beside them counts the rows that were not written,
by reason. `serving.request_log` writes both, and monitoring reads them.

    request, row                what was asked: id of the request, row of its table
    time, latency               when it was answered, and seconds of the whole request
    model, version, fingerprint, role
                                what answered, as `champion` or `canary`; a folder has no version
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
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from compo_pipeline.storage.files import atomic_file
from compo_pipeline.storage.untrusted import path_below, read_batches, read_json

REQUESTS = pa.schema(
    [
        pa.field("request", pa.string(), nullable=False),
        pa.field("row", pa.int32(), nullable=False),
        pa.field("time", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("model", pa.string(), nullable=False),
        ("version", pa.int32()),
        pa.field("fingerprint", pa.string(), nullable=False),
        pa.field("role", pa.string(), nullable=False),
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
DROPPED = ".dropped.json"
"""The end of the names of the files that count dropped rows."""
_NULLABLE = frozenset(field.name for field in REQUESTS if field.nullable)
_FOLDERS = re.compile(r"date=(\d{4}-\d\d-\d\d)/hour=(\d\d)/[^/]+")

log = logging.getLogger(__name__)


def hour_folder(time: datetime) -> str:
    """The folder of an hour's files, relative to that of the log."""
    return f"{time.astimezone(UTC):date=%Y-%m-%d/hour=%H}"


def hour_of(path: Path, folder: Path) -> datetime | None:
    """The hour of a file of the log; None of a file that lies elsewhere."""
    found = _FOLDERS.fullmatch(path.relative_to(folder).as_posix())
    try:
        return None if found is None else datetime.fromisoformat(f"{found[1]}T{found[2]}:00+00:00")
    except ValueError:
        return None


def log_files(folder: Path) -> Iterator[Path]:
    """The files in and below the log's folders of hours, which may be deleted meanwhile."""
    for place, folders, names in os.walk(folder):
        if Path(place) == folder:
            folders[:] = [name for name in folders if name.startswith("date=")]
        elif Path(place).parent != folder:
            yield from (Path(place) / name for name in names)


def write_requests(path: Path, rows: pa.Table) -> None:
    """Write a file of the log, which appears as a whole.

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
    """Rows of the log, few at a time, in the order of their hours.

    A file that cannot be read gives no row and is counted. Servers may write and delete files
    meanwhile.

    Args:
        folder: of the log.
        since: the time of the first row, with a time zone.
        until: the time before which the last row is.
        skipped: gets the number of files that were not read, by reason.
        columns: names of those that are read, in this order; None reads all.
    """
    chosen = list(REQUESTS.names if columns is None else columns)
    read = chosen if "time" in chosen else [*chosen, "time"]
    for path in _files(folder, ".parquet", since, until, skipped):
        try:
            batches = list(read_batches(path, REQUESTS, _NULLABLE, chosen=read))
        except ValueError as error:
            _skip(path, error, skipped)
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


def read_dropped(
    folder: Path, since: datetime, until: datetime, skipped: Counter[str]
) -> Counter[str]:
    """The number of rows that servers could not write into the log, by reason.

    Args:
        folder: of the log.
        since: whose hour is the first one.
        until: before which the last hour begins.
        skipped: gets the number of files that were not read, by reason.
    """
    dropped: Counter[str] = Counter()
    for path in _files(folder, DROPPED, since, until, skipped):
        try:
            content = read_json(path)
            reasons = content.get("reasons") if isinstance(content, dict) else None
            if not isinstance(reasons, dict) or not all(
                isinstance(count, int) and count >= 0 for count in reasons.values()
            ):
                raise ValueError(f"{path} has no counts of rows by reason")
        except ValueError as error:
            _skip(path, error, skipped)
        else:
            dropped.update(reasons)
    return dropped


def _files(
    folder: Path, ending: str, since: datetime, until: datetime, skipped: Counter[str]
) -> Iterator[Path]:
    """The log's files of the hours between two times, in the order of the hours."""
    first = since.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    found = (path for path in log_files(folder) if path.name.endswith(ending))
    for path in sorted(path for path in found if not path.parent.name.startswith(".")):
        hour = hour_of(path, folder)
        try:
            if hour is None:
                raise ValueError(f"{path} is not below date=YYYY-MM-DD/hour=HH")
            if first <= hour < until:
                yield path_below(folder, str(path.relative_to(folder)))
        except ValueError as error:
            _skip(path, error, skipped)


def _skip(path: Path, error: ValueError, skipped: Counter[str]) -> None:
    log.warning("Not read: %s", error)
    reason = "deleted meanwhile" if not path.exists() else str(error).replace(f"{path} ", "")
    skipped[reason.replace(f"{path}", path.name)] += 1
