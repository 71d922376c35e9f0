"""Consoles, tables and log lines for terminals, files and pipes."""

from __future__ import annotations

import logging
import sys

import rich
from rich import box
from rich.console import Console
from rich.logging import RichHandler
from rich.table import Table

# A file or a pipe has no width: more than any line needs.
_UNBOUNDED = 1000


def terminal(given: Console | None = None) -> Console:
    """The given or a new Rich console, which wraps no lines if the output is no terminal."""
    console = given or Console()
    if not console.is_terminal:
        console.width = _UNBOUNDED
    return console


def table(caption: str | None = None, *, collapse_padding: bool = False) -> Table:
    """An empty rich table without a frame, for rows of numbers."""
    return Table(
        box=box.SIMPLE_HEAD,
        caption=caption,
        caption_justify="left",
        pad_edge=False,
        show_edge=False,
        collapse_padding=collapse_padding,
    )


class LineHandler(logging.Handler):
    """Log handler that writes each record as one line with its time, of any length."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)-8s %(message)s", "%H:%M:%S"))

    def emit(self, record: logging.LogRecord) -> None:
        """Write a log record to the current standard output, which tests and notebooks replace."""
        sys.stdout.write(f"{self.format(record)}\n")
        sys.stdout.flush()


def log_plain_lines_off_terminal() -> None:
    """If output is no terminal, replace Rich's log handler by one that does not wrap lines.

    Its framed tracebacks are replaced by Python's own.
    """
    root = logging.getLogger()
    framed = [handler for handler in root.handlers if isinstance(handler, RichHandler)]
    if not framed or rich.get_console().is_terminal:
        return
    for handler in framed:
        root.removeHandler(handler)
    root.addHandler(LineHandler())
    sys.excepthook = sys.__excepthook__
