"""Models side by side on the benchmarks: an HTML page, markdown, and tables in the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from rich.console import Console
from rich.text import Text

from compo_pipeline.benchmarks.items import Subtask
from compo_pipeline.evaluation.aggregates import aggregate_rows
from compo_pipeline.evaluation.availability import BenchmarkAvailability
from compo_pipeline.evaluation.evaluate import Comparison
from compo_pipeline.evaluation.suite import means_of, reference_rows, same_models, trade_off
from compo_pipeline.presentation import pages, plots
from compo_pipeline.presentation.item_cards import ItemCard, hardest_cards
from compo_pipeline.presentation.tables import STYLES, number_table
from compo_pipeline.run.console import table as plain_table
from compo_pipeline.run.console import terminal
from compo_pipeline.storage.records import ItemChange

PAGE, MARKDOWN = "benchmark.html", "benchmark.md"
FRONTIER = "frontier.png"


def cards_of(
    suite: Comparison, changes: Sequence[ItemChange], subtasks: Sequence[Subtask], count: int
) -> dict[str, list[ItemCard]]:
    """Item cards of each model's hardest fixed and broken items against the first model.

    Args:
        suite: the scored models.
        changes: items on which a model and the first one differ.
        subtasks: that were scored.
        count: cards of each kind, over all models.
    """
    others = list(suite.models)[1:]
    each = -(-count // max(1, len(others)))
    return {
        name: hardest_cards(subtasks, (one for one in changes if one.model == name), each)
        for name in others
    }


def write(
    suite: Comparison,
    title: str,
    facts: Mapping[str, str],
    folder: Path,
    cards: Mapping[str, Sequence[ItemCard]] = MappingProxyType({}),
) -> Path:
    """Write several models' scores as `benchmark.html` and `benchmark.md`; returns the folder.

    Args:
        suite: the scored models.
        title: of the page.
        facts: about the run, label to text.
        folder: for the files.
        cards: of `cards_of`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    panels, (above, across) = _frontier_panels(suite), trade_off(suite)
    context = {
        "title": title,
        "facts": facts,
        "suite": suite,
        "names": list(suite.models),
        "aggregates": aggregate_rows(suite),
        "published": reference_rows(suite),
        "notes": [*same_models(suite), *suite.left_out],
        "cards": cards,
        "frontier": plots.frontier(panels, folder / FRONTIER),
        "panels": panels,
        "axes": [above, *across],
        "labels": {row.key: row.label for row in suite.rows},
    }
    for name in (PAGE, MARKDOWN):
        pages.write(folder / name, name, context)
    return folder


def _frontier_panels(suite: Comparison) -> list[plots.FrontierPanel]:
    """Panels of the frontier plot: compositionality against zero-shot accuracy and retrieval."""
    up, rights = trade_off(suite)
    above = means_of(suite, up) if up.members else {}
    if len(above) < 2:
        return []
    panels = []
    for right in rights:
        if right.members:
            across = means_of(suite, right)
            points = {name: (across[name], above[name]) for name in above if name in across}
            labels = [f"{one.label}, mean of {len(one.members)}, %" for one in (right, up)]
            panels.append(plots.FrontierPanel(labels[0], labels[1], points))
    return panels


def show(suite: Comparison, console: Console | None = None) -> None:
    """Print the headline metrics of all models of a suite, and what was left out."""
    console = terminal(console)
    coloured = "; coloured: significantly other than the first model (5%, Holm's correction)"
    title = "per cent" + coloured * (len(suite.models) > 1)
    table = number_table(title, suite.models, collapse_padding=True)
    for row in suite.headlines:
        styles = {each.model: STYLES[each.significance] for each in row.differences}
        cells = [
            Text(f"{each.value:.1f}", style=styles.get(name, STYLES["level"]))
            for name, each in row.values.items()
        ]
        table.add_row(Text(row.label), *cells)
    console.print(table)
    for line in (*same_models(suite), *suite.left_out):
        console.print(Text(line, style="yellow"))


def show_available(benchmarks: Sequence[BenchmarkAvailability]) -> None:
    """Print which benchmarks are present, with their numbers of items, and what is missing."""
    console = terminal()
    table = plain_table("benchmarks")
    for column in ("name", "benchmark", "subtasks", "items", "images", "missing images", "state"):
        table.add_column(column)
    for one in benchmarks:
        counts = [f"{number:,}" for number in (one.subtasks, one.items, one.images)]
        shown = [*counts, f"{one.missing_images:,}"] if one.items else [""] * 4
        table.add_row(one.benchmark.name, one.benchmark.label, *shown, one.state)
    console.print(table)
    for one in benchmarks:
        if lines := one.lines:
            place = f" in {one.folder}" if one.folder else ""
            text = "\n".join(f"  {line}" for line in (f"{one.benchmark.name}{place}:", *lines))
            console.print(text.strip(), markup=False, highlight=False, soft_wrap=True)
