"""A window of the request log: the requests that one version answered, by image.

A client repeats images, so requests of one image are a cluster: whatever is compared has each image
once, or counts its requests together. A request without an image belongs to its text.

n requests, D width of the joint space, C clusters.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from compo_pipeline.core.seeding import digest
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.registry.reference import Reference
from compo_pipeline.serving.monitoring.drift import PairRows
from compo_pipeline.serving.monitoring.settings import MonitoringSettings
from compo_pipeline.serving.requests import read_requests

Floats = NDArray[np.floating]

FOLDER = "serving.log.folder"
MOST_OF_AN_IMAGE = 1000
"""Requests of an image that are read with their embeddings."""
_COLUMNS = (
    "request",
    "row",
    "fingerprint",
    "task",
    "image_hash",
    "image",
    "text",
    "candidates",
    "margin",
    "tokens",
    "words",
    "unknown_words",
    "caption",
)


@dataclass(frozen=True, eq=False)
class Window:
    """The logged requests of a time window as arrays.

    A number that a request lacks is NaN.

    Attributes:
        since: when it begins.
        until: when it ends.
        requests: id of each request [n].
        rows: row of the request's table [n].
        images: embeddings [n, D].
        texts: embeddings [n, D].
        given: whether the text was the only one that the image was compared with [n].
        margins: margins of the best of several texts over the second [n].
        tokens: numbers of tokens of the text [n].
        words: numbers of words of the text [n].
        unknown_words: shares of unknown words of the text [n].
        captions: the text itself, None where the log has none [n].
        hashes: hashes of the images [n]. None without an image.
        clusters: number of the cluster [n].
        sizes: number of requests of each cluster, including those that were not read [C].
        left_out: requests that are not compared, by reason.
    """

    since: datetime
    until: datetime
    requests: NDArray[np.object_]
    rows: NDArray[np.int64]
    images: Floats
    texts: Floats
    given: NDArray[np.bool_]
    margins: Floats
    tokens: Floats
    words: Floats
    unknown_words: Floats
    captions: NDArray[np.object_]
    hashes: NDArray[np.object_]
    clusters: NDArray[np.int64]
    sizes: NDArray[np.int64]
    left_out: dict[str, int]

    def __len__(self) -> int:
        return len(self.requests)

    def one_of_each(self, seed: int) -> NDArray[np.int64]:
        """Draw one request of each cluster at random, where possible one with a single text."""
        order = np.random.default_rng(seed).permutation(len(self))
        order = order[np.argsort(~self.given[order], kind="stable")]
        _, first = np.unique(self.clusters[order], return_index=True)
        return np.sort(order[first])

    def pairs(self, places: NDArray[np.int64]) -> PairRows:
        """Requests at given indices as PairRows.

        A text that was chosen among several is NaN.
        """
        given = self.given[places]
        numbers = (
            np.where(given, values[places], np.nan)
            for values in (self.tokens, self.words, self.unknown_words)
        )
        texts = np.where(given[:, None], self.texts[places], np.nan)
        return PairRows(self.images[places], texts, *numbers)


def reference_pairs(reference: Reference) -> PairRows:
    """A version's reference sample as PairRows, to compare with the PairRows of requests."""
    return PairRows(
        reference.images,
        reference.texts,
        reference.tokens.astype(np.float64),
        reference.words.astype(np.float64),
        reference.unknown_words.astype(np.float64),
    )


def read_window(
    folder: Path | None, fingerprint: str, width: int, settings: MonitoringSettings, now: datetime
) -> Window:
    """Read the logged requests of a time window that a version's weights answered.

    Args:
        folder: folder of the log.
        fingerprint: fingerprint of the version's weights.
        width: width D of the joint space.
        settings: the window, and the most rows.
        now: the present time.

    Raises:
        SettingsError: there is no such folder, or it has no request of the window.
        DamagedFileError: a file of the log cannot be read.
    """
    if folder is None or not folder.is_dir():
        found = "got null" if folder is None else f"there is no folder {folder}"
        raise SettingsError(
            f"{FOLDER}: expected the folder of the server's request log, {found}; set it as "
            "`compo-pipeline serve` has it"
        )
    since, until = settings.window(now)
    left_out: Counter[str] = Counter()
    usable = (
        _usable_rows(batch, fingerprint, width, left_out)
        for batch in read_requests(folder, since, until, _COLUMNS)
    )
    chosen, sizes = _draw_clusters(usable, settings.rows)
    read = sum(map(len, chosen))
    if unread := sizes.total() - read:
        left_out["not drawn (monitoring.rows), or one of many of an image"] = unread
    if not read:
        others = ", ".join(f"{reason}: {count}" for reason, count in (+left_out).items()) or "none"
        raise SettingsError(
            f"monitoring.since: {folder} has no request that this version answered from "
            f"{since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} UTC (left out: {others}); the "
            "server writes rows every serving.log.flush_seconds (60) and when it ends. Set "
            "monitoring.since and monitoring.until, or monitoring.version to the one that is served"
        )
    table = pa.Table.from_batches([each for each in chosen if len(each)])
    names, numbers = np.unique(table["cluster"].to_numpy(), return_inverse=True)
    candidates = _numbers(table["candidates"])
    texts = _embeddings(table["text"], width)
    classified = np.asarray(pc.equal(table["task"], "classify"))
    return Window(
        since,
        until,
        requests=table["request"].to_numpy(),
        rows=np.asarray(table["row"].to_numpy(), dtype=np.int64),
        images=_embeddings(table["image"], width),
        texts=texts,
        given=~np.isnan(texts[:, 0]) & ~(candidates > 1) & ~classified,
        margins=_numbers(table["margin"]),
        tokens=_numbers(table["tokens"]),
        words=_numbers(table["words"]),
        unknown_words=_numbers(table["unknown_words"]),
        captions=np.array(table["caption"].to_pylist(), dtype=object),
        hashes=np.array(table["image_hash"].to_pylist(), dtype=object),
        clusters=numbers,
        sizes=np.array([sizes[name] for name in names]),
        left_out=dict(+left_out),
    )


def image_bytes(
    folder: Path, window: Window, hashes: Collection[str | None]
) -> Iterator[tuple[str, bytes]]:
    """Yield hash and bytes of a window's logged images with the given hashes.

    Args:
        folder: folder of the log.
        window: the time window.
        hashes: hashes of the images.
    """
    wanted = pa.array([name for name in hashes if name], pa.string())
    for batch in read_requests(folder, window.since, window.until, ("image_hash", "image_bytes")):
        own = pc.and_(pc.is_in(batch["image_hash"], wanted), pc.is_valid(batch["image_bytes"]))
        for name, content in zip(*(each.to_pylist() for each in batch.filter(own)), strict=True):
            if hashlib.sha256(content).hexdigest().startswith(name):
                yield name, content


def _usable_rows(
    batch: pa.RecordBatch, fingerprint: str, width: int, left_out: Counter[str]
) -> pa.RecordBatch:
    """Rows that these weights answered and that have an embedding.

    Counts all others by reason.
    """
    own = pc.equal(batch["fingerprint"], fingerprint)
    # Of the reference's width.
    there = [pc.equal(pc.list_value_length(batch[name]), width) for name in ("image", "text")]
    usable = pc.and_(own, pc.or_(*(pc.fill_null(each, False) for each in there)))
    count = pc.sum(own).as_py() or 0
    left_out["answered by another model"] += len(batch) - count
    left_out["no embedding"] += count - (pc.sum(usable).as_py() or 0)
    return batch.filter(usable)


def _embeddings(column: pa.Array | pa.ChunkedArray, width: int) -> NDArray[np.float32]:
    """Embeddings [n, D] of an Arrow column of lists.

    A null or another width gives NaN.
    """
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    found = np.full((len(column), width), np.nan, dtype=np.float32)
    fit = pc.fill_null(pc.equal(pc.list_value_length(column), width), False)
    values = column.filter(fit).flatten().to_numpy(zero_copy_only=False)
    found[np.asarray(fit)] = np.asarray(values, dtype=np.float32).reshape(-1, width)
    return found


def _numbers(column: pa.ChunkedArray) -> Floats:
    """Values of a numeric Arrow column as float64, with NaN for nulls."""
    return np.asarray(column.cast(pa.float64()).to_numpy(), dtype=np.float64)


def _cluster_names(batch: pa.RecordBatch) -> list[str]:
    """Cluster of each row: the image's hash or, without image, a hash of the text's embedding."""
    texts = batch.column("text")
    return [
        name or hashlib.sha256(np.array(texts[place].as_py()).tobytes()).hexdigest()
        for place, name in enumerate(batch.column("image_hash").to_pylist())
    ]


def _draw_clusters(
    batches: Iterable[pa.RecordBatch], most: int
) -> tuple[list[pa.RecordBatch], Counter[str]]:
    """Draw clusters of logged rows at random: returns their rows, and the size of every cluster.

    Args:
        batches: usable rows.
        most: rows that are drawn; of one cluster at most `MOST_OF_AN_IMAGE`.
    """
    sizes: Counter[str] = Counter()
    chosen: list[pa.RecordBatch] = []
    threshold, read = 1.0, 0
    for batch in batches:
        clusters, few = _cluster_names(batch), []
        for name in clusters:
            sizes[name] += 1
            few.append(sizes[name] <= MOST_OF_AN_IMAGE)
        own = batch.append_column("cluster", pa.array(clusters, pa.string())).filter(
            pa.array(few, pa.bool_())
        )
        chosen.append(_rows_below(own, threshold))
        read += len(chosen[-1])
        while read > most:
            threshold /= 2
            chosen = [_rows_below(each, threshold) for each in chosen]
            read = sum(map(len, chosen))
    return chosen, sizes


def _rows_below(batch: pa.RecordBatch, threshold: float) -> pa.RecordBatch:
    """The rows whose cluster's name hashes to a number below a threshold."""
    if threshold == 1:
        return batch
    drawn = [digest(name) / 2**64 < threshold for name in batch.column("cluster").to_pylist()]
    return batch.filter(pa.array(drawn, pa.bool_()))
