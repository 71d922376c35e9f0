"""Find requests that are out of distribution, and the hardest requests by several measures.

n requests, m rows of the reference, D width of the joint space.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from compo_pipeline.evaluation.statistics import Part, level
from compo_pipeline.registry.reference import Reference
from compo_pipeline.serving.monitoring.window import Window

Floats = NDArray[np.floating]

NEIGHBOUR = 10
"""Number of the neighbour whose distance is that to the reference."""
_BLOCK = 2048  # rows
# A request is out of distribution if it is farther than this share of the reference's own rows.
_QUANTILE = 0.99
LISTS = {
    "own_margin": "smallest margin of the best text over the second",
    "margin": "smallest margin of the text over texts of the reference",
    "image_distance": "images farthest from the reference",
    "text_distance": "texts farthest from the reference",
}
"""The lists of the hardest requests, by the number that they are sorted by."""


@dataclass(frozen=True, slots=True)
class OutsideShare:
    """Share of requests that are out of distribution: beyond a distance from the reference.

    Attributes:
        kind: images or texts.
        threshold: cosine distance to the neighbour.
        images: clusters that have an embedding of the kind.
        share: share of these that have a request beyond the threshold, in per cent.
        interval: 95% interval of the share.
        requests: number of requests with such an embedding.
        requests_share: share of the requests, in per cent.
        requests_interval: 95% interval of the share of requests, by cluster.
        expected: share of the reference's own rows, in per cent.
    """

    kind: str
    threshold: float
    images: int
    share: float
    interval: tuple[float, float]
    requests: int
    requests_share: float
    requests_interval: tuple[float, float]
    expected: float


@dataclass(frozen=True, slots=True)
class HardRequest:
    """A logged request in a list of the hardest ones, with the value it is ranked by.

    Attributes:
        request: id of the request.
        row: row of the request's table.
        image_hash: hash of the image. None without an image.
        caption: the text, where it is logged.
        value: the number that the list is sorted by.
    """

    request: str
    row: int
    image_hash: str | None
    caption: str | None
    value: float


@dataclass(frozen=True, eq=False)
class Distances:
    """Cosine distances of requests to the reference sample, or NaN where there is no embedding.

    Attributes:
        images: distances of the requests' images [n].
        texts: distances of the requests' texts, if the text was given [n].
        thresholds: thresholds of images and texts, by kind.
    """

    images: Floats
    texts: Floats
    thresholds: Mapping[str, float]

    def outside(self, kind: str) -> NDArray[np.bool_]:
        """Mask [n] of the requests that are farther from the reference than the threshold."""
        values = self.images if kind == "images" else self.texts
        return np.asarray(values > self.thresholds[kind])


def neighbour_distances(rows: Floats, reference: Floats, neighbours: int) -> Floats:
    """Cosine distance [n] of unit vectors [n, D] to their k-th nearest neighbour of [m, D]."""
    found = [np.zeros(0)]
    for start in range(0, len(rows), _BLOCK):
        similar = rows[start : start + _BLOCK] @ reference.T
        found.append(1 - np.partition(similar, -neighbours, axis=1)[:, -neighbours])
    return np.concatenate(found)


def measure_distances(window: Window, reference: Reference) -> Distances:
    """Measure the distances of all requests to the reference sample, and the thresholds.

    The distance to a sample is that to its tenth nearest neighbour, of a small one to its last.
    """
    k = min(NEIGHBOUR, len(reference.images) - 1)
    found, thresholds = {}, {}
    for kind, requests, own in (
        ("images", window.images, reference.images),
        ("texts", np.where(window.given[:, None], window.texts, np.nan), reference.texts),
    ):
        # A row of the reference is its own nearest neighbour.
        limits = np.quantile(neighbour_distances(own, own, k + 1), _QUANTILE)
        thresholds[kind] = float(limits)
        values = np.full(len(window), np.nan)
        there = ~np.isnan(requests[:, 0])
        values[there] = neighbour_distances(requests[there], own, k)
        found[kind] = values
    return Distances(found["images"], found["texts"], thresholds)


def outside_shares(window: Window, distances: Distances) -> list[OutsideShare]:
    """Shares of out-of-distribution images and texts.

    A kind without embeddings is left out.
    """
    shares = []
    for kind, values in (("images", distances.images), ("texts", distances.texts)):
        there = ~np.isnan(values)
        if not there.any():
            continue
        outside = 100.0 * distances.outside(kind)[there]
        clusters = np.unique(window.clusters[there], return_inverse=True)[1]
        most = np.zeros(clusters.max() + 1)
        np.maximum.at(most, clusters, outside)
        by_image = level([Part(most[None], np.arange(len(most)))], [1.0])
        by_request = level([Part(outside[None], clusters)], [1.0])
        shares.append(
            OutsideShare(
                kind,
                distances.thresholds[kind],
                len(most),
                by_image.value,
                by_image.interval,
                len(outside),
                by_request.value,
                by_request.interval,
                100 * (1 - _QUANTILE),
            )
        )
    return shares


def hardest(
    window: Window, distances: Distances, margins: Floats, count: int
) -> dict[str, list[HardRequest]]:
    """The hardest requests by each number of `LISTS`, one of each cluster.

    Args:
        window: the requests.
        distances: distances of the window.
        margins: over texts of the reference [n].
        count: number of requests in each list.
    """
    numbers = window.margins, margins, distances.images, distances.texts
    found = {}
    for name, values in zip(LISTS, numbers, strict=True):
        farthest_first = -values if name.endswith("distance") else values
        found[name] = [
            HardRequest(
                str(window.requests[place]),
                int(window.rows[place]),
                window.hashes[place],
                window.captions[place],
                float(values[place]),
            )
            for place in _smallest(farthest_first, window.clusters, count)
        ]
    return found


def _smallest(values: Floats, clusters: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Indices of the smallest values, one of each cluster, or NaN is left out."""
    order = np.argsort(values, kind="stable")
    order = order[~np.isnan(values[order])]
    _, first = np.unique(clusters[order], return_index=True)
    return order[np.sort(first)][:count]
