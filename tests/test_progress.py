"""Progress passes everything on and says how far it is."""

import logging
from typing import Any

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


@pytest.fixture
def bars(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What bars on a terminal are called."""
    import tqdm

    made: list[str] = []

    class Bar:
        def __init__(self, items: Any = (), *, desc: str, **options: Any) -> None:
            self.items = items
            made.append(desc)

        def __iter__(self) -> Any:
            return iter(self.items)

        def set_postfix(self, *given: Any, **named: Any) -> None: ...

        def update(self) -> None: ...

        def close(self) -> None: ...

    monkeypatch.setattr(tqdm, "tqdm", Bar)
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: True)
    return made


@pytest.mark.parametrize(
    ("level", "shown"), [(logging.INFO, ["spelling", "training"]), (logging.WARNING, [])]
)
def test_a_terminal_has_bars_unless_this_log_was_told_to_be_quiet(
    bars: list[str], caplog: pytest.LogCaptureFixture, level: int, shown: list[str]
) -> None:
    caplog.set_level(level, "compo_pipeline.progress")
    assert list(progress.track("abc", 3, "spelling")) == ["a", "b", "c"]
    with progress.Meter(1, "training") as meter:
        meter.advance(loss=1.0)
    assert bars == shown
    assert caplog.messages == []
