"""A window has the requests of one version, by image; what it leaves out is counted."""

import hashlib
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compo_pipeline.core.settings import SettingsError, parse
from compo_pipeline.registry.reference import Reference
from compo_pipeline.serving.monitoring import window as windows
from compo_pipeline.serving.monitoring.drift import PairRows
from compo_pipeline.serving.monitoring.report import measure
from compo_pipeline.serving.monitoring.settings import MonitoringSettings
from compo_pipeline.serving.monitoring.window import Window, image_bytes, read_window

from .conftest import FINGERPRINT, NOW, WIDTH

Draw = Callable[..., PairRows]
Log = Callable[..., Path]


def read(folder: Path | None, **settings: Any) -> Window:
    return read_window(folder, FINGERPRINT, WIDTH, MonitoringSettings(**settings), NOW)


def test_requests_are_read_as_they_were_logged(draw: Draw, log: Log) -> None:
    rows = draw(5, 0)
    found = read(log(rows, caption=["a", "b", None, "d", "e"], margin=[0.5, None, 0.25, 0, 0]))
    assert len(found) == 5 and found.given.all() and found.sizes.tolist() == [1] * 5
    assert np.array_equal(found.images, rows.images) and np.array_equal(found.texts, rows.texts)
    for name in ("tokens", "words", "unknown_words"):
        assert np.array_equal(getattr(found, name), getattr(rows, name))
    assert found.captions.tolist() == ["a", "b", None, "d", "e"]
    assert np.array_equal(found.margins, [0.5, np.nan, 0.25, 0, 0], equal_nan=True)
    pairs = found.pairs(np.arange(5))
    assert np.array_equal(pairs.texts, rows.texts) and np.array_equal(pairs.words, rows.words)


def test_texts_that_were_chosen_are_no_captions(draw: Draw, log: Log) -> None:
    rows = draw(4, 0)
    log(rows, task=["score", "rank", "classify", "embed"], candidates=[1, 3, 1, None])
    found = read(log(rows.take(np.arange(1)), text=[None], tokens=[None], words=[None]))
    assert found.given.tolist() == [True, False, False, True, False]
    pairs = found.pairs(np.arange(5))
    assert np.isnan(pairs.texts[~found.given]).all() and np.isnan(pairs.words[~found.given]).all()
    assert not np.isnan(pairs.images).any()


def test_each_image_counts_once(draw: Draw, log: Log) -> None:
    rows = draw(40, 0)
    hashes = [f"{k % 4:016x}" for k in range(40)]
    chosen = [1 if k < 4 else 3 for k in range(40)]
    found = read(log(rows, image_hash=hashes, candidates=chosen))
    assert found.sizes.tolist() == [10] * 4
    # A text that was given is preferred to one that was chosen among several.
    assert found.one_of_each(0).tolist() == [0, 1, 2, 3]
    again = read(log(rows, image_hash=hashes))
    drawn = {tuple(again.one_of_each(seed)) for seed in range(20)}
    assert len(drawn) > 10
    assert all(len({again.clusters[k] for k in places}) == 4 for places in drawn)


def test_requests_without_an_image_belong_to_their_text(draw: Draw, log: Log) -> None:
    rows = draw(6, 0)
    texts = [rows.texts[0], rows.texts[0], rows.texts[1], *rows.texts[3:]]
    nothing = {"image_hash": [None] * 6, "image": [None] * 6, "task": ["embed"] * 6}
    found = read(log(rows, **nothing, text=[each.astype(np.float16) for each in texts]))
    assert sorted(found.sizes) == [1, 1, 1, 1, 2] and found.clusters[0] == found.clusters[1]
    assert np.isnan(found.images).all() and found.given.all()


def test_what_is_left_out_is_counted(draw: Draw, log: Log) -> None:
    rows = draw(3, 0)
    log(rows)
    log(rows, fingerprint=["other", FINGERPRINT, "other"])
    log(rows, time=NOW - timedelta(days=2))
    short = [vector.astype(np.float16)[:5] for vector in rows.images]
    log(rows, image=short, text=[None] * 3)
    found = read(log(rows, image=[None] * 3, text=[None] * 3))
    assert len(found) == 3 + 1
    assert found.left_out == {"answered by another model": 2, "no embedding": 6}


def test_the_window_is_that_of_the_settings(draw: Draw, log: Log) -> None:
    for hours in (30, 20, 10, 1):
        folder = log(draw(hours, 0), time=NOW - timedelta(hours=hours))
    assert len(read(folder)) == 20 + 10 + 1
    assert len(read(folder, since=NOW - timedelta(hours=40))) == 30 + 20 + 10 + 1
    ends = {"since": NOW - timedelta(hours=20), "until": NOW - timedelta(hours=10)}
    assert len(read(folder, **ends)) == 20
    given = {"since": "2026-03-01T00:00:00Z", "until": "2026-03-01T02:00:00+02:00"}
    with pytest.raises(SettingsError, match=r"monitoring\.until|monitoring: until"):
        parse(MonitoringSettings, given, "monitoring")


def test_more_requests_than_are_read_are_drawn_by_image(draw: Draw, log: Log) -> None:
    rows = draw(16_000, 0)
    hashes = [f"{k % 4000:016x}" for k in range(16_000)]
    found = read(log(rows, image_hash=hashes), rows=10_000)
    assert 6_000 < len(found) <= 10_000 and set(found.sizes) == {4}
    assert found.left_out == {
        "not drawn (monitoring.rows), or one of many of an image": 16_000 - len(found)
    }


def test_a_request_that_is_repeated_is_no_drift_and_is_counted(
    draw: Draw, log: Log, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "MOST_OF_AN_IMAGE", 100)
    log(draw(60, 3))
    one = draw(1, 5).take(np.zeros(10_000, dtype=int))
    far = list(-one.images.astype(np.float16))
    found = read(log(one, image=far, image_hash=["e" * 16] * 10_000))
    assert len(found) == 60 + 100 and sorted(found.sizes)[-1] == 10_000
    assert found.left_out == {"not drawn (monitoring.rows), or one of many of an image": 9_900}
    measured = measure(found, reference)
    assert min(each.adjusted or 1 for each in measured.figures) > 0.05
    outside = next(each for each in measured.outside if each.kind == "images")
    assert outside.images == 61 and outside.share < 10
    # Nearly all of these requests are of one image, so that their share is hardly known.
    low, high = outside.requests_interval
    assert outside.requests_share > 60 and high - low > 60


def test_all_requests_of_one_image_are_too_few_to_compare(
    draw: Draw, log: Log, reference: Reference
) -> None:
    found = read(log(draw(50, 3), image_hash=["0" * 16] * 50))
    measured = measure(found, reference)
    assert {each.p for each in measured.figures} == {None}
    assert [each.requests for each in measured.figures] == [1] * 7


@pytest.mark.parametrize("folder", [None, Path("nowhere")])
def test_a_missing_log_names_its_setting(folder: Path | None) -> None:
    with pytest.raises(SettingsError, match=r"serving\.log\.folder"):
        read(folder)


def test_an_empty_window_says_what_there_is(draw: Draw, log: Log) -> None:
    folder = log(draw(3, 0), fingerprint=["other"] * 3)
    with pytest.raises(SettingsError, match=r"(?s)monitoring\.since.*another model: 3"):
        read(folder)
    with pytest.raises(SettingsError, match="left out: none.*flush_seconds"):
        read(folder, until=NOW - timedelta(days=2))


def test_images_are_those_of_their_hashes(draw: Draw, log: Log) -> None:
    contents = [b"one", b"two", b"two", b"forged", None]
    hashes = [hashlib.sha256(each or b"").hexdigest()[:16] for each in contents]
    hashes[3] = "0" * 16
    folder = log(draw(5, 0), image_hash=hashes, image_bytes=contents)
    window = read(folder)
    found = dict(image_bytes(folder, window, hashes))
    assert found == {hashes[0]: b"one", hashes[1]: b"two"}
    assert dict(image_bytes(folder, window, hashes[:1])) == {hashes[0]: b"one"}
