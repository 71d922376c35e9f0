"""Where results are printed, and how their tables look."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

_LOG_WIDTH = 120


def terminal(given: Console | None = None) -> Console:
    """The given console, or the terminal's own; in a log, which has no width, one wide enough."""
    console = given or Console()
    if not console.is_terminal:
        console.width = _LOG_WIDTH
    return console


def table(caption: str | None = None, *, collapse_padding: bool = False) -> Table:
    """A table of figures, without a frame."""
    return Table(
        box=box.SIMPLE_HEAD,
        caption=caption,
        caption_justify="left",
        pad_edge=False,
        show_edge=False,
        collapse_padding=collapse_padding,
    )
