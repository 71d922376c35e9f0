"""Requests far from the reference, and the hardest ones, against slow computations."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from compo_pipeline.registry.reference import Reference
from compo_pipeline.serving.monitoring.distances import (
    NEIGHBOUR,
    hardest,
    measure_distances,
    neighbour_distances,
    outside_shares,
)
from compo_pipeline.serving.monitoring.drift import PairRows, margins
from compo_pipeline.serving.monitoring.settings import MonitoringSettings
from compo_pipeline.serving.monitoring.window import Window, read_window

from .conftest import FINGERPRINT, NOW, WIDTH

Draw = Callable[..., PairRows]
Log = Callable[..., Path]


def read(folder: Path) -> Window:
    return read_window(folder, FINGERPRINT, WIDTH, MonitoringSettings(), NOW)


def test_distances_are_those_to_the_kth_neighbour(draw: Draw) -> None:
    rows, reference = draw(20, 1).images, draw(50, 2).images
    for k in (1, 4):
        found = neighbour_distances(rows, reference, k)
        for row, distance in zip(rows, found, strict=True):
            expected = sorted(1 - float(row @ other) for other in reference)[k - 1]
            assert distance == pytest.approx(expected, abs=1e-6)


def test_the_threshold_is_of_each_row_among_the_others(
    draw: Draw, log: Log, reference: Reference
) -> None:
    distances = measure_distances(read(log(draw(30, 1))), reference)
    own = []
    for place, row in enumerate(reference.images):
        others = np.delete(reference.images, place, axis=0)
        own.append(sorted(1 - others @ row)[NEIGHBOUR - 1])
    assert distances.thresholds["images"] == pytest.approx(np.quantile(own, 0.99), abs=1e-6)


def test_shares_are_those_of_images_and_of_requests(
    draw: Draw, log: Log, reference: Reference
) -> None:
    far = draw(50, 2)
    log(draw(200, 1))
    hashes = [f"f{k // 5:015x}" for k in range(50)]
    vectors = list(-far.images.astype(np.float16))
    window = read(log(far, image=vectors, image_hash=hashes, candidates=[2] * 50))
    found = {
        each.kind: each for each in outside_shares(window, measure_distances(window, reference))
    }
    assert found["images"].images == 210 and found["images"].requests == 250
    # Some 5 per cent of the near ones, all of the far ones.
    assert found["images"].share == pytest.approx(100 * (10 + 0.05 * 200) / 210, abs=5)
    assert found["images"].requests_share == pytest.approx(100 * (50 + 0.05 * 200) / 250, abs=5)
    low, high = found["images"].interval
    assert low < found["images"].share < high and low > found["images"].expected
    # Texts that were chosen among several are not looked at.
    assert found["texts"].requests == 200
    assert found["texts"].interval[0] <= found["texts"].expected + 5


def test_a_kind_that_no_request_has_is_left_out(draw: Draw, log: Log, reference: Reference) -> None:
    window = read(log(draw(30, 1), text=[None] * 30))
    distances = measure_distances(window, reference)
    assert [each.kind for each in outside_shares(window, distances)] == ["images"]


def test_the_hardest_are_sorted_and_of_different_images(
    draw: Draw, log: Log, reference: Reference
) -> None:
    rows = draw(40, 1)
    own = [None if k % 3 else k / 100 for k in range(40)]
    hashes = [f"{k // 2:016x}" for k in range(40)]
    window = read(log(rows, margin=own, image_hash=hashes, caption=[f"{k}" for k in range(40)]))
    distances = measure_distances(window, reference)
    over_others = margins(window.images, window.texts, reference.texts[:50])
    lists = hardest(window, distances, over_others, 6)
    assert [each.value for each in lists["own_margin"]] == [
        pytest.approx(k / 100) for k in (0, 3, 6, 9, 12, 15)
    ]
    for name, values in (("image_distance", distances.images), ("margin", -over_others)):
        shown: list[int] = []
        for place in np.argsort(-values, kind="stable"):
            if window.clusters[place] not in window.clusters[shown]:
                shown.append(int(place))
        assert [each.request for each in lists[name]] == window.requests[shown[:6]].tolist()
    one = lists["own_margin"][1]
    assert (one.request, one.image_hash, one.caption) == ("r0-3", hashes[3], "3")
