"""The request log's writer: what a server answered, as rows of `storage.requests`.

A request hands on what it was asked and what it answered; one thread computes the rows and writes
them. A request never waits for it: what does not fit into the queue, and what cannot be written, is
dropped and counted by reason. A second thread, of low priority, makes the files of a past hour one.

n rows of a request, K candidates, D width of the embeddings.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
import prometheus_client as metrics
import pyarrow as pa

from compo_pipeline.configuration.settings import SettingsError
from compo_pipeline.run.seeding import digest
from compo_pipeline.serving.settings import RequestLogSettings
from compo_pipeline.serving.waiting import ExchangeQueue, QueuedExchange, lower_priority
from compo_pipeline.storage.files import is_full_disk, write_plain_json
from compo_pipeline.storage.requests import (
    DROPPED,
    MOST_ORDERED,
    REQUESTS,
    compact,
    compactable,
    hour_folder,
    hour_of,
    log_files,
    superseded,
    write_requests,
)
from compo_pipeline.versions.model import InvalidRequest, image_bytes, open_image
from compo_pipeline.versions.reference import length_in_words, lengths_in_tokens, unknown_words

if TYPE_CHECKING:
    from compo_pipeline.serving.exchange import Deployed, Exchange
    from compo_pipeline.versions.model import ImageTextModel

# Bytes of the rows that may wait for a file, and those of a row beside its vectors and content.
_FILE, _ROW = 64_000_000, 1000
_TOKENIZED = 64  # texts at once: requests wait for the tokenizer meanwhile
_BETWEEN_LINES = 60  # seconds between lines about dropped rows
# Seconds after which a file that was not completed is one of a killed server, and after which
# nobody reads those that a compacted file supersedes.
_LEFTOVER = 3600
_COMPACTING = 60  # seconds between two looks for hours that are over
_LAST = 10  # seconds in which the rows of a server that ends are written
_DAY = 86_400

log = logging.getLogger(__name__)


class RequestLog:
    """Writes answered requests to Parquet files in threads; called with each exchange.

    Attributes:
        server: id of this process in the names of its files.
        written: number of rows in files.
        dropped: number of rows that were not written, by reason.
    """

    def __init__(
        self, settings: RequestLogSettings, folder: Path, metric: metrics.Counter | None = None
    ) -> None:
        """Start the writer.

        Args:
            settings: of the log.
            folder: of the log; it is made where it is missing.
            metric: counts the rows that are not written, by `reason`.

        Raises:
            SettingsError: the folder cannot be written to.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
            writable = os.access(folder, os.W_OK | os.X_OK)
        except OSError as error:
            raise SettingsError(
                f"serving.log.folder: '{folder}' cannot be made: {error.strerror}"
            ) from None
        if not writable:
            raise SettingsError(f"serving.log.folder: '{folder}' is not writable")
        self.server, self.written = uuid4().hex[:8], 0
        self.dropped: Counter[str] = Counter()
        self._settings, self._folder, self._metric = settings, folder, metric
        self._files = 0
        self._waiting = ExchangeQueue(settings.queue)
        self._counting = threading.Lock()
        # By hour: columns of rows for a file; counts of dropped rows, and whether a file has them.
        self._rows: dict[str, dict[str, list[Any]]] = {}
        self._size = 0
        self._counts: dict[str, Counter[str]] = defaultdict(Counter)
        self._uncounted: set[str] = set()
        self._told: Counter[str] = Counter()
        self._line = float("-inf")
        # A clock that jumps ahead deletes no file: ages are by the clock that does not jump.
        self._started = time.time() - time.monotonic()
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=target, name=name, daemon=True)
            for target, name in (
                (self._run_writer, "request log"),
                (self._run_compaction, "compaction"),
            )
        ]
        for thread in self._threads:
            thread.start()

    def __call__(self, exchange: Exchange) -> None:
        """Put an answered request into the queue; a sample of the requests, by their ids."""
        answered = exchange.answered
        if exchange.status != 200 or answered is None or not len(answered.output):
            return
        if digest("request log", exchange.id) >= self._settings.share * 2**64:
            return
        queued = QueuedExchange.from_exchange(exchange)
        if not self._waiting.put(queued):
            self._count_dropped("queue full", hour_folder(queued.time), queued.rows)

    def close(self) -> None:
        """Write the queued rows, and end the threads, waiting a few seconds for each."""
        self._waiting.end()
        self._ended.set()
        for thread in self._threads:
            thread.join(_LAST)

    def _run_writer(self) -> None:
        """Main loop of the writing thread: a Parquet file of new rows every `flush_seconds`."""
        due = time.monotonic() + self._settings.flush_seconds
        while True:
            queued = self._waiting.get(due)
            if queued is not None:
                self._add_rows(queued)
            ending = self._waiting.ended and queued is None
            if ending or self._size > _FILE or time.monotonic() >= due:
                self._flush()
                due = time.monotonic() + self._settings.flush_seconds
            if ending:
                return

    def _run_compaction(self) -> None:
        """Main loop of the second thread: merge the log files of each past hour into one."""
        lower_priority()
        refused: set[tuple[Path, ...]] = set()
        while not self._ended.wait(_COMPACTING):
            until = datetime.fromtimestamp(self._now(), UTC) - timedelta(
                hours=1, seconds=2 * self._settings.flush_seconds
            )
            for files in compactable(self._folder, self.server, until):
                if self._ended.is_set() or tuple(files) in refused:
                    continue
                try:
                    compact(files, lambda: not self._ended.is_set())
                except InterruptedError:
                    return
                except Exception as error:  # noqa: BLE001  its files are read as they are
                    refused.add(tuple(files))
                    log.warning("request log: %s is not compacted: %s", files[0].parent, error)

    def _now(self) -> float:
        """Current time in seconds since 1970, without forward jumps of the system clock."""
        return min(time.time(), self._started + time.monotonic())

    def _add_rows(self, queued: QueuedExchange) -> None:
        """Compute the log rows of a queued request, for the next file."""
        hour = hour_folder(queued.time)
        try:
            columns = dict(_columns(queued, self._settings.content))
        except Exception:
            log.exception("request %s: it cannot be put into the request log", queued.exchange.id)
            self._count_dropped("cannot be computed", hour, queued.rows)
            return
        rows = self._rows.setdefault(hour, {name: [] for name in REQUESTS.names})
        for name, values in rows.items():
            values += columns.get(name) or [None] * queued.rows
        self._size += queued.rows * _ROW
        self._size += sum(
            len(content)
            for name in ("image", "text", "caption", "image_bytes")
            for content in columns.get(name) or ()
            if content is not None
        )

    def _flush(self) -> None:
        """Write waiting rows and counts of dropped rows to files, and delete the oldest files."""
        for hour, columns in self._rows.items():
            rows = len(columns["row"])
            path = self._folder / hour / f"{self.server}-{self._files:06d}.parquet"
            try:
                self._require_folder()
                write_requests(path, pa.table(columns, schema=REQUESTS))
                self._files += 1
                self.written += rows
            except OSError as error:
                self._count_dropped(_drop_reason(error), hour, rows)
            except Exception:
                log.exception("a file of the request log cannot be written")
                self._count_dropped("cannot be computed", hour, rows)
        self._rows, self._size = {}, 0
        problem = ""
        try:
            self._require_folder()
            self._write_counts()
            self._delete_oldest()
        except OSError as error:
            problem = f"its oldest files cannot be deleted: {error}"
        self._log_drops(problem)

    def _require_folder(self) -> None:
        """Raise an error if the log's folder is gone, as after an unmount."""
        if not self._folder.is_dir():
            raise FileNotFoundError(f"{self._folder} is gone")

    def _count_dropped(self, reason: str, hour: str, rows: int) -> None:
        """Count rows that are not logged, by reason and hour."""
        with self._counting:
            self.dropped[reason] += rows
            self._counts[hour][reason] += rows
            self._uncounted.add(hour)
        if self._metric is not None:
            self._metric.labels(reason).inc(rows)

    def _write_counts(self) -> None:
        """Write a JSON file per hour with the counts of dropped rows."""
        with self._counting:
            counts = {hour: dict(self._counts[hour]) for hour in self._uncounted}
            self._uncounted = set()
        for hour, reasons in counts.items():
            content = {"rows": sum(reasons.values()), "reasons": reasons}
            try:
                write_plain_json(self._folder / hour / f"{self.server}{DROPPED}", content)
            except OSError:
                with self._counting:
                    self._uncounted.add(hour)

    def _log_drops(self, problem: str) -> None:
        """Log a problem and new counts of dropped rows, at most once a minute."""
        with self._counting:
            dropped = Counter(self.dropped)
        new = dropped - self._told
        if (new or problem) and time.monotonic() >= self._line + _BETWEEN_LINES:
            reasons = ", ".join(f"{reason}: {count} rows dropped" for reason, count in new.items())
            log.warning("request log %s: %s", self._folder, reasons or problem)
            self._told, self._line = dropped, time.monotonic()

    def _delete_oldest(self) -> None:
        """Delete the oldest log files beyond the limits of total size and age."""
        now = self._now()
        found = sorted(self._deletable_files(now))
        total = sum(size for *_, size in found)
        days = timedelta(days=self._settings.max_age_days, hours=1)
        oldest = datetime.fromtimestamp(now, UTC) - days
        for hour, _, path, size in found:
            if total <= self._settings.max_bytes and hour > oldest:
                break
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
            total -= size
            if now - hour.timestamp() > _DAY:
                # Not of today: another server may be about to write into the folder.
                with suppress(OSError):  # not empty
                    path.parent.rmdir()
                    path.parent.parent.rmdir()

    def _deletable_files(self, now: float) -> Iterator[tuple[datetime, float, Path, int]]:
        """Yield hour, modification time, path and bytes of log files that may be deleted.

        A superseded file that nobody reads any more is of the first hour of all.
        """
        paths = [
            path for path in log_files(self._folder) if path.name.endswith((".parquet", DROPPED))
        ]
        stale = superseded(paths)
        for path in paths:
            unfinished = path.parent.name.startswith(".")
            whole = path.parent if unfinished else path
            hour = hour_of(whole, self._folder)
            if hour is None:
                continue
            with suppress(OSError):  # deleted meanwhile
                status = path.stat()
                if unfinished and now - status.st_mtime <= _LEFTOVER:
                    continue
                if path in stale and now - stale[path].stat().st_mtime > _LEFTOVER:
                    hour = datetime.min.replace(tzinfo=UTC)
                yield hour, status.st_mtime, whole, status.st_size


def _drop_reason(error: OSError) -> str:
    """Reason why rows could not be written, as one of a few fixed phrases."""
    if is_full_disk(error):
        return "disk full"
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return "folder gone"
    if isinstance(error, PermissionError):
        return "folder not writable"
    return "cannot be written"


def _columns(queued: QueuedExchange, content: Sequence[str]) -> Iterator[tuple[str, list[Any]]]:
    """Yield name and values of each log column for a request's rows, without null columns."""
    exchange, rows = queued.exchange, queued.rows
    answered, table, served = exchange.answered, exchange.table, exchange.served
    assert answered is not None and table is not None
    yield "row", list(range(rows))
    for name, value in (
        ("request", exchange.id),
        ("time", queued.time),
        ("model", served.model),
        ("version", served.version),
        ("fingerprint", served.fingerprint),
        ("role", exchange.role),
        ("task", answered.task),
        ("latency", exchange.seconds),
    ):
        yield name, [value] * rows
    if answered.images is not None:
        yield "image", list(answered.images.astype(np.float16))
        yield from _image_columns(
            exchange.deployed.model, table["image"].tolist(), "images" in content
        )
    vectors, texts = answered.texts, table["text"].tolist() if "text" in table else []
    if answered.candidates is not None:
        assert answered.similarities is not None and vectors is not None
        orders = np.argsort(-answered.similarities, axis=1, kind="stable")  # [n, K]
        ordered = np.take_along_axis(answered.similarities, orders[:, :2], axis=1)
        yield "candidates", [len(answered.candidates)] * rows
        yield "order", list(orders[:, :MOST_ORDERED].astype(np.int32))
        yield "cosine", ordered[:, 0].tolist()
        if ordered.shape[1] > 1:
            yield "margin", (ordered[:, 0] - ordered[:, 1]).tolist()
        texts, vectors = [answered.candidates[k] for k in orders[:, 0]], vectors[orders[:, 0]]
    elif answered.similarities is not None:
        yield "cosine", answered.similarities.tolist()
    if vectors is not None:
        yield "text", list(vectors.astype(np.float16))
        yield from _text_columns(exchange.deployed, texts)
        if "texts" in content:
            yield "caption", texts


def _image_columns(
    model: ImageTextModel, cells: Sequence[str], with_bytes: bool
) -> Iterator[tuple[str, list[Any]]]:
    """Yield name and values of each log column about images; null for a missing file."""
    names = ("image_hash", "width", "height", "bytes", "image_bytes")
    found = {cell: _image_values(model, cell) for cell in dict.fromkeys(cells)}
    for name, values in zip(names, zip(*(found[cell] for cell in cells), strict=True), strict=True):
        if with_bytes or name != "image_bytes":
            yield name, list(values)


def _image_values(model: ImageTextModel, cell: str) -> tuple[Any, ...]:
    """Hash, width, height, bytes and content of an image; all None if it cannot be read."""
    try:
        content = image_bytes(cell, model.limits)
        header = open_image(cell, model.limits)
    except (InvalidRequest, OSError):
        return (None,) * 5
    digits = hashlib.sha256(content).hexdigest()[:16]
    return digits, header.width, header.height, len(content), content


def _text_columns(deployed: Deployed, texts: Sequence[str]) -> Iterator[tuple[str, list[Any]]]:
    """Yield name and values of each log column about texts: tokens, words, unknown words."""
    distinct = list(dict.fromkeys(texts))
    padding = int(deployed.model.tokens([""])[0, -1])
    lengths: dict[str, int] = {}
    for start in range(0, len(distinct), _TOKENIZED):
        some = distinct[start : start + _TOKENIZED]
        ids = deployed.model.tokens(some).numpy()
        lengths |= zip(some, lengths_in_tokens(ids, padding).tolist(), strict=True)
    yield "tokens", [lengths[text] for text in texts]
    yield "words", [length_in_words(text) for text in texts]
    if deployed.words is not None:
        unknown = {text: unknown_words(text, deployed.words) for text in distinct}
        yield "unknown_words", [unknown[text] for text in texts]
