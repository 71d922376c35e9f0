"""Progress passes everything on and says how far it is."""

import logging

import pytest

from compo_pipeline import progress


def test_items_pass_unchanged_and_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert list(progress.track(iter("abc"), 3, "spelling")) == ["a", "b", "c"]
    assert caplog.messages[-1].startswith("spelling: 3 in ")


def test_log_lines_where_there_is_no_terminal(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    clock = iter(range(0, 1000, 6))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(clock)))
    list(progress.track(range(4), 4, "counting"))
    assert caplog.messages == [
        "counting: 2 of 4, about 12 s left",
        "counting: 4 of 4, about 0 s left",
        "counting: 4 in 30.0 s",
    ]
