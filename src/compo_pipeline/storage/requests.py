"""The request log: a row for each row that a served model answered, in Parquet files by hour.

`date=YYYY-MM-DD/hour=HH/<server>-<number>.parquet` (UTC, the hour of the request; `<server>` is the
id of a server process). Once the hour is over, `<server>-<first>-<last>.parquet` has the rows of
the files with these numbers, which are not read any more, and deleted later. Beside them,
`<server>.dropped.json` counts the rows that were not written, by reason. `serving.request_log`
writes all of them, and monitoring reads them.

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
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import chain, groupby
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from compo_pipeline.storage.files import atomic_file
from compo_pipeline.storage.untrusted import parquet_file, path_below, read_batches, read_json

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
_NUMBERED = re.compile(r"([^-]+)-(\d+)(?:-(\d+))?\.parquet")
# Bytes of a compacted file's rows, which a reader holds at once, and of its groups of rows.
_COMPACTED, _GROUP = 128_000_000, 16_000_000

log = logging.getLogger(__name__)


def hour_folder(time: datetime) -> str:
    """Path of the folder for an hour's files, relative to the request log."""
    return f"{time.astimezone(UTC):date=%Y-%m-%d/hour=%H}"


def hour_of(path: Path, folder: Path) -> datetime | None:
    """The hour of a request log's file by its path; None for a file outside the hours' folders."""
    found = _FOLDERS.fullmatch(path.relative_to(folder).as_posix())
    try:
        return None if found is None else datetime.fromisoformat(f"{found[1]}T{found[2]}:00+00:00")
    except ValueError:
        return None


def log_files(folder: Path) -> Iterator[Path]:
    """Yield the files in the hours' folders of the request log."""
    for place, folders, names in os.walk(folder):
        if Path(place) == folder:
            folders[:] = [name for name in folders if name.startswith("date=")]
        elif Path(place).parent != folder:
            yield from (Path(place) / name for name in names)


class _LogFile(NamedTuple):
    """A Parquet file of the request log: folder, server, and range of file numbers in its name."""

    folder: Path
    server: str
    first: int
    last: int
    path: Path

    @classmethod
    def from_paths(cls, paths: Iterable[Path]) -> list[_LogFile]:
        """The request log's Parquet files among paths, sorted by folder, server and number."""
        matches = ((path, _NUMBERED.fullmatch(path.name)) for path in paths)
        found = [
            cls(path.parent, match[1], int(match[2]), int(match[3] or match[2]), path)
            for path, match in matches
            if match
        ]
        return sorted(found, key=lambda each: (*each[:3], -each.last))


def superseded(paths: Iterable[Path]) -> dict[Path, Path]:
    """Mapping from files of the request log to the compacted file that has their rows."""
    found: dict[Path, Path] = {}
    widest: _LogFile | None = None
    for each in _LogFile.from_paths(paths):
        if widest and each[:2] == widest[:2] and each.last <= widest.last:
            found[each.path] = widest.path
        else:
            widest = each
    return found


def write_requests(path: Path, rows: pa.Table) -> None:
    """Write rows as a Parquet file of the request log, atomically.

    Args:
        path: of the file, below `hour_folder`.
        rows: with the columns of `REQUESTS`.
    """
    _write_groups(path, [rows])


def _write_groups(path: Path, groups: Iterable[pa.Table]) -> None:
    """Write groups of rows as a Parquet file of the request log, atomically."""
    # A file of fewer bytes than rows is refused when it is read.
    compression = {name: "none" if name == "row" else "zstd" for name in REQUESTS.names}
    texts = [name for name in REQUESTS.names if pa.types.is_string(REQUESTS.field(name).type)]
    with (
        atomic_file(path) as temporary,
        pq.ParquetWriter(
            temporary,
            REQUESTS,
            compression=compression,
            use_dictionary=texts,
            write_page_checksum=True,
        ) as writer,
    ):
        for rows in groups:
            writer.write_table(rows.cast(REQUESTS))


def compactable(folder: Path, server: str, until: datetime) -> Iterator[list[Path]]:
    """Yield lists of a server's log files of one hour that can be merged into one file.

    Args:
        folder: of the log.
        server: id of the server, which writes no more rows of these hours.
        until: before which the last hour begins.
    """
    found = [path for path in log_files(folder) if path.name.startswith(f"{server}-")]
    current = _LogFile.from_paths(set(found) - set(superseded(found)))
    for _, of_hour in groupby(current, key=lambda each: each.folder):
        paths = [each.path for each in of_hour]
        hour = hour_of(paths[0], folder)
        if hour is None or hour >= until or len(paths) == 1:
            continue
        run, size = list[Path](), 0
        for path in paths:
            own = _row_bytes(path)
            if size + own > _COMPACTED:
                if len(run) > 1:
                    yield run
                run, size = [], 0
            run.append(path)
            size += own
        if len(run) > 1:
            yield run


def _row_bytes(path: Path) -> int:
    """Uncompressed bytes of a Parquet file's rows; a number above the limit if it is unreadable."""
    try:
        with parquet_file(path) as file:
            groups = range(file.metadata.num_row_groups)
            return sum(file.metadata.row_group(k).total_byte_size for k in groups)
    except ValueError:
        return _COMPACTED + 1


def compact(files: Sequence[Path], goes_on: Callable[[], bool] = lambda: True) -> None:
    """Merge files of the request log into one, atomically, which supersedes them.

    Args:
        files: in the order of their numbers.
        goes_on: is asked now and then; False ends it, and nothing has changed.

    Raises:
        ValueError: a file cannot be read.
    """
    numbered = _LogFile.from_paths(files)
    name = f"{numbered[0].server}-{numbered[0].first:06d}-{numbered[-1].last:06d}.parquet"

    def groups() -> Iterator[pa.Table]:
        waiting, size = list[pa.RecordBatch](), 0
        batches = (read_batches(each, REQUESTS, _NULLABLE) for each in files)
        for batch in chain.from_iterable(batches):
            if not goes_on():
                raise InterruptedError
            waiting.append(batch)
            size += batch.nbytes
            if size > _GROUP:
                yield pa.Table.from_batches(waiting)
                waiting, size = [], 0
        if waiting:
            yield pa.Table.from_batches(waiting)

    _write_groups(files[0].with_name(name), groups())


def read_requests(
    folder: Path,
    since: datetime,
    until: datetime,
    skipped: Counter[str],
    columns: Sequence[str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the request log's rows between two times as Arrow batches, hour by hour.

    A file that cannot be read gives no row and is counted. Servers may write, compact and delete
    files meanwhile.

    Args:
        folder: of the log.
        since: the time of the first row, with a time zone.
        until: the time before which the last row is.
        skipped: gets the number of files that were not read, by reason.
        columns: names of those that are read, in this order; None reads all.
    """
    chosen = list(REQUESTS.names if columns is None else columns)
    read = chosen if "time" in chosen else [*chosen, "time"]
    for path in _files_between(folder, ".parquet", since, until, skipped):
        try:
            batches = list(read_batches(path, REQUESTS, _NULLABLE, chosen=read))
        except ValueError as error:
            _count_unreadable(path, error, skipped)
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
    """Number of rows, by reason, that servers could not write into the request log.

    Args:
        folder: of the log.
        since: whose hour is the first one.
        until: before which the last hour begins.
        skipped: gets the number of files that were not read, by reason.
    """
    dropped: Counter[str] = Counter()
    for path in _files_between(folder, DROPPED, since, until, skipped):
        try:
            content = read_json(path)
            reasons = content.get("reasons") if isinstance(content, dict) else None
            if not isinstance(reasons, dict) or not all(
                isinstance(count, int) and count >= 0 for count in reasons.values()
            ):
                raise ValueError(f"{path} has no counts of rows by reason")
        except ValueError as error:
            _count_unreadable(path, error, skipped)
        else:
            dropped.update(reasons)
    return dropped


def _files_between(
    folder: Path, ending: str, since: datetime, until: datetime, skipped: Counter[str]
) -> Iterator[Path]:
    """Yield the request log's files of the hours between two times, in the order of the hours."""
    first = since.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    found = [
        path
        for path in log_files(folder)
        if path.name.endswith(ending) and not path.parent.name.startswith(".")
    ]
    for path in sorted(set(found) - set(superseded(found))):
        hour = hour_of(path, folder)
        try:
            if hour is None:
                raise ValueError(f"{path} is not below date=YYYY-MM-DD/hour=HH")
            if first <= hour < until:
                yield path_below(folder, str(path.relative_to(folder)))
        except ValueError as error:
            _count_unreadable(path, error, skipped)


def _count_unreadable(path: Path, error: ValueError, skipped: Counter[str]) -> None:
    """Log and count, by reason, a file of the request log that cannot be read."""
    log.warning("Not read: %s", error)
    reason = "deleted meanwhile" if not path.exists() else str(error).replace(f"{path} ", "")
    skipped[reason.replace(f"{path}", path.name)] += 1
