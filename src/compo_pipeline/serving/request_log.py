"""The request log's writer: answered rows, as rows of `serving.requests`.

A request hands on what it was asked and what it answered; one thread computes the rows and writes
them. A request never waits for it: what does not fit into the queue, and what cannot be written, is
dropped and counted by reason.

n rows of a request, K candidates, D width of the embeddings.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
import prometheus_client as metrics
import pyarrow as pa

from compo_pipeline.core.files import is_full_disk
from compo_pipeline.core.seeding import digest
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.registry.model import InvalidRequest, image_bytes, open_image
from compo_pipeline.registry.reference import length_in_words, lengths_in_tokens, unknown_words
from compo_pipeline.serving.requests import MOST_ORDERED, REQUESTS, hour_folder, write_requests
from compo_pipeline.serving.settings import RequestLogSettings
from compo_pipeline.serving.waiting import Worker

if TYPE_CHECKING:
    from compo_pipeline.registry.model import ImageTextModel
    from compo_pipeline.serving.exchange import Deployed, Exchange

# Bytes of the requests that may wait, and of those whose rows wait for a file.
_QUEUE, _FILE = 200_000_000, 64_000_000
_TOKENIZED = 64  # texts at once: requests wait for the tokenizer meanwhile
_BETWEEN_LINES = 60  # seconds between lines about dropped rows
_DAY = 86_400

log = logging.getLogger(__name__)


class RequestLog:
    """Writer of answered requests to Parquet files, in a thread.

    It is called with each exchange.

    Attributes:
        server: id of this process in the names of its files.
        written: number of rows in files.
    """

    def __init__(
        self, settings: RequestLogSettings, folder: Path, dropped: metrics.Counter
    ) -> None:
        """Start the writer.

        Args:
            settings: settings of the log.
            folder: the log's folder; it is made where it is missing.
            dropped: counts the rows that are not written, by `reason`.

        Raises:
            SettingsError: the folder cannot be written to.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
            TemporaryFile(dir=folder).close()
        except OSError as error:
            raise SettingsError(
                f"serving.log.folder: cannot write to '{folder}': {error.strerror}"
            ) from None
        self.server, self.written = uuid4().hex[:8], 0
        self._settings, self._folder, self._dropped = settings, folder, dropped
        self._rows: dict[str, dict[str, list[Any]]] = {}  # columns of a file, by hour
        self._size = self._files = 0
        self._line = float("-inf")
        self._worker = Worker(self._add_rows, _QUEUE, self._flush, settings.flush_seconds)
        self.close = self._worker.close

    def __call__(self, exchange: Exchange) -> None:
        """Put an answered request into the queue, if its id belongs to the sample."""
        answered = exchange.answered
        if exchange.status != 200 or answered is None or not len(answered.output):
            return
        if digest("request log", exchange.id) >= self._settings.share * 2**64:
            return
        if not self._worker.put(exchange):
            self._drop("queue full", len(answered.output))

    def _add_rows(self, exchange: Exchange) -> None:
        """Compute the log rows of a request, for the next file."""
        assert exchange.table is not None
        count = len(exchange.table)
        try:
            columns = dict(_columns(exchange, self._settings.content))
        except Exception:
            log.exception("request %s: it cannot be put into the request log", exchange.id)
            self._drop("cannot be computed", count)
            return
        names = REQUESTS.names
        rows = self._rows.setdefault(hour_folder(exchange.time), {name: [] for name in names})
        for name, values in rows.items():
            values += columns.get(name) or [None] * count
        self._size += exchange.size
        if self._size > _FILE:
            self._flush()

    def _flush(self) -> None:
        """Write the waiting rows to files, and delete the oldest files."""
        for hour, columns in self._rows.items():
            path = self._folder / hour / f"{self.server}-{self._files:06d}.parquet"
            try:
                if not self._folder.is_dir():  # as after an unmount
                    raise FileNotFoundError(errno.ENOENT, "the folder is gone")
                write_requests(path, pa.table(columns, schema=REQUESTS))
                self._files += 1
                self.written += len(columns["row"])
            except OSError as error:
                reason = os.strerror(error.errno) if error.errno else "cannot be written"
                self._drop("disk full" if is_full_disk(error) else reason, len(columns["row"]))
            except Exception:
                log.exception("a file of the request log cannot be written")
                self._drop("cannot be computed", len(columns["row"]))
        self._rows, self._size = {}, 0
        try:
            self._delete_oldest()
        except OSError as error:
            self._warn(f"its oldest files cannot be deleted: {error}")

    def _drop(self, reason: str, rows: int) -> None:
        """Count rows that are not logged, by reason."""
        self._dropped.labels(reason).inc(rows)
        self._warn(f"{reason}: rows are dropped; compo_log_rows_dropped_total counts them")

    def _warn(self, problem: str) -> None:
        """Log a problem, at most once a minute."""
        if time.monotonic() >= self._line + _BETWEEN_LINES:
            log.warning("request log %s: %s", self._folder, problem)
            self._line = time.monotonic()

    def _delete_oldest(self) -> None:
        """Delete the oldest log files beyond the limits of total size and age."""
        found = []
        for path in self._folder.glob("date=*/hour=*/**/*"):
            with suppress(FileNotFoundError):  # deleted meanwhile
                status = path.stat()
                if path.is_file():
                    found.append((status.st_mtime, path, status.st_size))
        total, now = sum(size for *_, size in found), time.time()
        for written, path, size in sorted(found):
            age = (now - written) / _DAY
            if total <= self._settings.max_bytes and age <= self._settings.max_age_days:
                break
            path.unlink(missing_ok=True)
            total -= size
            if age > 1:
                # Not of today: another server may be about to write into the folder.
                with suppress(OSError):  # not empty
                    for folder in path.relative_to(self._folder).parents[:-1]:
                        (self._folder / folder).rmdir()


def _columns(exchange: Exchange, content: Sequence[str]) -> Iterator[tuple[str, list[Any]]]:
    """Yield name and values of each log column for a request's rows, without null columns."""
    answered, table, served = exchange.answered, exchange.table, exchange.served
    assert answered is not None and table is not None
    rows = len(table)
    yield "row", list(range(rows))
    for name, value in (
        ("request", exchange.id),
        ("time", exchange.time),
        ("model", served.model),
        ("version", served.version),
        ("fingerprint", served.fingerprint),
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
    """Yield name and values of each log column about images, or null for a missing file."""
    names = ("image_hash", "width", "height", "bytes", "image_bytes")
    found = {cell: _image_values(model, cell) for cell in dict.fromkeys(cells)}
    for name, values in zip(names, zip(*(found[cell] for cell in cells), strict=True), strict=True):
        if with_bytes or name != "image_bytes":
            yield name, list(values)


def _image_values(model: ImageTextModel, cell: str) -> tuple[Any, ...]:
    """Hash, width, height, bytes and content of an image, or all None if it cannot be read."""
    try:
        content = image_bytes(cell, model.limits)
        header = open_image(content, model.limits)
    except (InvalidRequest, OSError):
        return (None,) * 5
    digits = hashlib.sha256(content).hexdigest()[:16]
    return digits, header.width, header.height, len(content), content


def _text_columns(deployed: Deployed, texts: Sequence[str]) -> Iterator[tuple[str, list[Any]]]:
    """Yield name and values of each log column about texts: tokens, words, unknown words."""
    yield "tokens", token_lengths(deployed.model, texts)
    yield "words", [length_in_words(text) for text in texts]
    if deployed.words is not None:
        unknown = {text: unknown_words(text, deployed.words) for text in {*texts}}
        yield "unknown_words", [unknown[text] for text in texts]


def token_lengths(model: ImageTextModel, texts: Sequence[str]) -> list[int]:
    """Number of tokens of each text, without padding."""
    distinct = list(dict.fromkeys(texts))
    padding = int(model.tokens([""])[0, -1])
    lengths: dict[str, int] = {}
    for start in range(0, len(distinct), _TOKENIZED):
        some = distinct[start : start + _TOKENIZED]
        ids = model.tokens(some).numpy()
        lengths |= zip(some, lengths_in_tokens(ids, padding).tolist(), strict=True)
    return [lengths[text] for text in texts]
