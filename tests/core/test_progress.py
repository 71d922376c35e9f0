"""Progress passes everything on and says how far it is."""

import logging
import sys
from collections.abc import Iterator

import pytest
from kedro.logging import RichHandler

from compo_pipeline.core import console, progress


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
    with progress.Meter(6, "training", done=2) as meter:
        meter.advance(loss=0.5)
        for _ in range(3):
            meter.advance()
    assert caplog.messages == [
        "training: 4 of 6, loss 0.5, 0.167/s, about 12 s left",
        "training: 4 in 30.0 s, loss 0.5, 0.133/s",
    ]


def test_a_loop_that_fails_claims_no_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with pytest.raises(ValueError, match="third"):
        for number in progress.track(range(3), 3, "counting"):
            if number == 2:
                raise ValueError("third")
    with pytest.raises(RuntimeError), progress.Meter(3, "training") as meter:
        meter.advance()
        raise RuntimeError
    assert caplog.messages == []


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    logger, hook = logging.getLogger(), sys.excepthook
    before = logger.handlers[:]
    logger.handlers[:] = [RichHandler()]
    yield logger
    logger.handlers[:], sys.excepthook = before, hook


def test_log_lines_are_whole(root: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    console.log_plain_lines_off_terminal()
    console.log_plain_lines_off_terminal()
    text = "word " * 50
    logging.getLogger("compo_pipeline.anything").warning(text)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.endswith(f"WARNING  {text}")


def test_tables_are_whole(capsys: pytest.CaptureFixture[str]) -> None:
    table = console.table()
    table.add_column("words")
    table.add_row("word " * 50)
    console.terminal().print(table)
    assert "word " * 50 in capsys.readouterr().out
