"""Models side by side on the benchmarks: an HTML page, markdown, and tables in the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from compo_pipeline.console import table as plain_table
from compo_pipeline.console import terminal
from compo_pipeline.evaluation.suite import Available, Suite
from compo_pipeline.presentation import pages
from compo_pipeline.presentation.tables import STYLES

PAGE, MARKDOWN = "benchmark.html", "benchmark.md"


def write(suite: Suite, title: str, facts: Mapping[str, str], folder: Path) -> Path:
    """Write `benchmark.html` and `benchmark.md`; return the folder.

    Args:
        suite: the scored models.
        title: of the page.
        facts: about the run, label to text.
        folder: for both files.
    """
    context = {"title": title, "facts": facts, "links": (), "suite": suite}
    folder.mkdir(parents=True, exist_ok=True)
    for name in (PAGE, MARKDOWN):
        pages.write(folder / name, name, context)
    return folder


def show(suite: Suite, console: Console | None = None) -> None:
    """Print the headline metrics of all models, and what was left out."""
    console = terminal(console)
    table = plain_table("per cent; coloured: the 95% interval of the difference from the first "
                        "model excludes zero", collapse_padding=True)  # fmt: skip
    table.add_column("")
    for model in suite.models:
        table.add_column(model.name, justify="right", no_wrap=True)
    for rows in suite.table:
        if rows[0].headline:
            cells = [
                Text(f"{row.fine_tuned.value:.1f}", style=STYLES[row.vs_base.significance])
                for row in rows
            ]
            table.add_row(Text(rows[0].label), *cells)
    console.print(table)
    for line in suite.left_out:
        console.print(Text(line, style="yellow"))
    for label in suite.not_run:
        console.print(Text(f"{label}: not run, its files are not there", style="yellow"))


def show_available(benchmarks: Sequence[Available], console: Console | None = None) -> None:
    """Print which benchmarks are there, with their numbers of items, and what is missing."""
    console = terminal(console)
    table = plain_table("benchmarks")
    for column in ("name", "benchmark", "subtasks", "items", "images", "missing images", "state"):
        table.add_column(column)
    for one in benchmarks:
        counts = [f"{number:,}" for number in (one.subtasks, one.items, one.images)]
        state = one.problem or ("ready" if one.enabled else "not enabled")
        shown = [*counts, f"{one.missing_images:,}"] if one.items else [""] * 4
        table.add_row(one.name, one.label, *shown, state)
    console.print(table)
    for one in benchmarks:
        if one.source and (not one.enabled or one.problem):
            line = f"{one.name}: {one.source}"
            console.print(line, markup=False, highlight=False, soft_wrap=True)
