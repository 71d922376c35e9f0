"""Tables of results in the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from compo_pipeline.benchmarks.registry import BENCHMARKS
from compo_pipeline.evaluation.comparison import Difference, Estimate, Row
from compo_pipeline.evaluation.evaluate import Comparison
from compo_pipeline.presentation import pages
from compo_pipeline.run.console import table as plain_table
from compo_pipeline.run.console import terminal

STYLES = {"good": "green", "bad": "red", "above": "green", "below": "red", "level": "dim"}
# More than any table needs.
_ANY_WIDTH = 1000


def print_table(section: pages.Table, console: Console) -> None:
    """Print the table of a page."""
    table = plain_table(section.note)
    for place, name in enumerate(section.columns):
        words = not place or name in section.words
        table.add_column(name, justify="left" if words else "right", no_wrap=not words)
    for line in section.lines:
        texts = (f"{cell.text} {cell.small}".strip() for cell in line)
        styles = (STYLES.get(cell.kind, "") for cell in line)
        table.add_row(*map(Text, texts, styles))
    console.print(table)


def number_table(caption: str, columns: Iterable[str], *, collapse_padding: bool = False) -> Table:
    """A Rich table with right-aligned columns of numbers, and an unnamed first column of labels."""
    table = plain_table(caption, collapse_padding=collapse_padding)
    table.add_column("")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def difference_text(difference: Difference, decimals: int = 1) -> Text:
    """A difference with its interval as Rich text, coloured by its significance."""
    return Text(difference.format(decimals), style=STYLES[difference.significance])


def show_comparison(
    comparison: Comparison, last: Sequence[str] = (), console: Console | None = None
) -> None:
    """Print the headline metrics of all models, what was left out, conclusions and last lines."""
    console = terminal(console)
    console.print()
    table = _comparison_table(comparison, wide=True)
    options = console.options.update(width=_ANY_WIDTH)
    if console.measure(table, options=options).maximum > console.width:
        table = _comparison_table(comparison, wide=False)
    console.print(table)
    for line in comparison.left_out:
        console.print(Text(line, style="yellow"))
    if not comparison.conclusions:
        console.print("No item could be scored, so there is nothing to compare.")
    for place, line in enumerate(comparison.conclusions):
        console.print(Text(line, style="bold" if place == 0 else ""))
    for line in last:
        # Unwrapped, so that commands can be copied.
        console.print(Text(line), soft_wrap=True)


def _comparison_table(comparison: Comparison, *, wide: bool) -> Table:
    """A Rich table of headline metrics; a narrow table has intervals for differences alone."""
    against = [] if not comparison.rows else comparison.rows[0].differences
    table = number_table(
        "per cent; 95% intervals; differences are paired on the same items",
        [*comparison.labels.values(), *(f"against {each.against}" for each in against)],
        collapse_padding=True,
    )
    previous = ""
    for row in comparison.rows:
        if not row.headline:
            continue
        if row.benchmark != previous:
            name = comparison.benchmarks.get(row.benchmark, row.benchmark)
            table.add_row(Text(name, style="bold"))
        previous = row.benchmark
        cells = [_estimate_text(each, wide=wide) for each in row.values.values()]
        cells += map(difference_text, row.differences)
        table.add_row(Text(f"  {_short_label(row)}"), *cells)
    return table


def _short_label(row: Row) -> str:
    """The label of a headline metric without its benchmark."""
    if row.benchmark == "sugar_crepe_pp":
        return f"{row.metric.upper()} {row.name}"
    if row.benchmark == "retrieval":
        label = row.metric.upper().replace("_R", " R@")
        return label if row.name in BENCHMARKS[row.benchmark].unnamed else f"{label} {row.name}"
    return row.name.replace("_", " ")


def _estimate_text(estimate: Estimate, *, wide: bool) -> Text:
    """A metric's value as Rich text, in wide tables with its interval."""
    cell = Text(f"{estimate.value:.1f}")
    if wide:
        cell.append(f" [{estimate.low:.1f}, {estimate.high:.1f}]", style="dim")
    return cell
