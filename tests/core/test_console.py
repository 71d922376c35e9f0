"""Off a terminal nothing is wrapped, and every log line has its time."""

import logging
import sys
from collections.abc import Iterator

import pytest
from kedro.logging import RichHandler

from compo_pipeline.core import console


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
