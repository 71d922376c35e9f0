"""Tables of results, which pages and the terminal show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import rich.table
from rich.console import Console
from rich.text import Text as Words

from compo_pipeline.core.console import table as plain_table
from compo_pipeline.core.console import terminal
from compo_pipeline.evaluation.comparison import FINE_TUNED, Difference, Estimate, Row
from compo_pipeline.evaluation.contamination import Overlap
from compo_pipeline.evaluation.evaluate import Comparison
from compo_pipeline.evaluation.published import AggregateRow, PublishedResults
from compo_pipeline.pages.pages import (
    Cell,
    CellLike,
    List,
    Page,
    Table,
    Text,
    counted,
    interval,
    p_value,
)

Column: TypeAlias = Callable[[Row], CellLike]
"""A cell for each metric."""

_STYLES = {"good": "green", "bad": "red", "above": "green", "below": "red", "level": "dim"}
PER_CENT = (
    "Per cent, with 95% intervals. Green is above the first model and red below it, where the "
    "paired difference is significant at 5% after Holm's correction over all comparisons."
)
DETECTABLE = "detectable"
_DETECTABLE_NOTE = (
    " Detectable: the true difference from the first model that a test at 5% finds with a power of "
    "80%."
)
_COLUMNS: dict[str, Column] = {
    "skipped": lambda row: row.skipped,
    "chance": lambda row: row.chance,
    "gained": lambda row: row.difference.gained,
    "lost": lambda row: row.difference.lost,
    "p": lambda row: p_value(row.difference.p),
    "Holm": lambda row: p_value(row.difference.p_holm),
    DETECTABLE: lambda row: row.difference.least_detectable,
}
# More than any table needs.
_ANY_WIDTH = 1000


def estimate_cell(estimate: Estimate, kind: str = "") -> Cell:
    """A value with its interval."""
    return Cell(estimate.value, kind, interval(estimate.low, estimate.high))


def difference_cell(found: Difference) -> Cell:
    """A paired difference with its interval."""
    value, _, ends = found.format().partition(" ")
    return Cell(value, found.significance, ends)


def metrics_table(
    rows: Iterable[Row],
    labels: Mapping[str, str],
    differences: Sequence[str] = (),
    further: Sequence[str] = (),
    own: Mapping[str, Column] = MappingProxyType({}),
    **section: Any,
) -> Table:
    """A table of metrics: values of each model with intervals, coloured by their significance.

    Args:
        rows: the metrics.
        labels: labels of the models, by their keys in the rows.
        differences: heads of the rows' first differences, which stand behind the values.
        further: columns behind these: skipped, chance, gained, lost, p, Holm, detectable.
        own: columns behind these, by their heads.
        section: title and note of the section, and whether it is folded.
    """
    columns = {**{name: _COLUMNS[name] for name in further}, **own}
    lines = []
    for row in rows:
        kinds = {each.model: each.significance for each in reversed(row.differences)}
        values = [
            estimate_cell(row.values[role], kinds.get(role, "").replace("level", ""))
            for role in labels
        ]
        values += map(difference_cell, row.differences[: len(differences)])
        label = f"{row.slice} {row.label}".strip()
        lines.append([label, row.items, *values, *(cell(row) for cell in columns.values())])
    if DETECTABLE in further:
        section["note"] = section.get("note", "") + _DETECTABLE_NOTE
    return Table(["metric", "n", *labels.values(), *differences, *columns], lines, **section)


def headline_table(comparison: Comparison, further: Sequence[str] = ()) -> Table:
    """The headline metrics of a run's models, with the differences of the fine-tuned one.

    Args:
        comparison: comparison of a run's models.
        further: columns behind the differences.
    """
    labels = comparison.labels
    heads = [f"{labels[FINE_TUNED]} - {role}" for role in labels if role != FINE_TUNED]
    rows, title = comparison.headlines, "Summary"
    return metrics_table(rows, labels, heads, further, title=title, note=PER_CENT)


def aggregates_table(rows: Sequence[AggregateRow], names: Sequence[str]) -> Table:
    """Means over benchmarks that papers report."""
    lines = [
        [Cell(row.label, "words", row.remark), *(row.values or [None] * len(names)), row.source]
        for row in rows
    ]
    columns = ["average", *names, "in the paper"]
    return Table(columns, lines, ["in the paper"], title="The papers' averages")


def published_tables(
    found: Iterable[PublishedResults], labels: Mapping[str, str]
) -> Iterator[Table]:
    """Yield a table for each paper: values of the models beside the published ones."""
    for paper, rows in ((one.paper, one.rows) for one in found):
        yield Table(
            ["metric", *(f"{label} (here)" for label in labels.values()), *paper.models],
            [[row.label, *(row.values[role].value for role in labels), *own] for row, own in rows],
            title=f"Published: {paper.title}",
            note=f"Not measured here; shown where all official items were scored. {paper.source}",
        )


def overlaps_table(overlaps: Sequence[Overlap], benchmarks: Mapping[str, str]) -> Table:
    """How many images and texts of each subtask are in the training rows."""
    columns = "subtask,images,same bytes,same name,captions,same words"
    return Table(
        [*columns.split(","), "attribute-object pairs"],
        [
            [
                f"{benchmarks[one.benchmark]} {one.subtask.replace('_', ' ')}",
                *(one.images, one.same_bytes, one.same_name),
                *(one.captions, one.same_caption, counted(one.bindings) or None),
            ]
            for one in overlaps
        ],
        title="Overlap with the training rows",
        note="Of each subtask's distinct images and true captions, how many are also in the "
        "training split: images by their bytes, by their file name (meaningful if names are "
        "global, as in COCO); captions by their words, sentence against sentence.",
    )


def print_table(section: Table, console: Console) -> None:
    """Print the table of a page.

    Where it is too wide, intervals of differences alone are shown.
    """
    table = _rich_table(section, wide=True)
    options = console.options.update(width=_ANY_WIDTH)
    if console.measure(table, options=options).maximum > console.width:
        table = _rich_table(section, wide=False)
    console.print(table)


def _rich_table(section: Table, *, wide: bool) -> rich.table.Table:
    """The table of a page for the terminal."""
    table = plain_table(section.note.replace("`", "") or None, collapse_padding=True)
    for place, name in enumerate(section.columns):
        words = not place or name in section.words
        table.add_column(name, justify="left" if words else "right", no_wrap=not words)
    for line in section.lines:
        table.add_row(
            *(
                Words(
                    f"{cell.text} {cell.small}".strip()
                    if wide or cell.text[:1] in "+-"
                    else cell.text,
                    _STYLES.get(cell.kind, ""),
                )
                for cell in line
            )
        )
    return table


def show(page: Page, *titles: str) -> None:
    """Print tables, lists and lines to copy of a page, and its summary, on the terminal.

    Args:
        page: the page.
        titles: titles of the sections to show. Empty shows all that are not folded.
    """
    console = terminal()
    for section in page.sections:
        if section.folded or not section.shown or (titles and section.title not in titles):
            continue
        if isinstance(section, Table):
            print_table(section, console)
        lines = section.items if isinstance(section, List) else ()
        for line in (section.text, section.code) if isinstance(section, Text) else lines:
            # Unwrapped, so that commands can be copied.
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    for line in (page.title, *page.summary):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def show_comparison(
    comparison: Comparison, last: Sequence[str] = (), console: Console | None = None
) -> None:
    """Print the headline metrics of all models, omissions, conclusions and last lines."""
    console = terminal(console)
    console.print()
    print_table(headline_table(comparison), console)
    none = ["No item could be scored, so there is nothing to compare."]
    for line in (*comparison.left_out, *(comparison.conclusions or none)):
        console.print(Words(line))
    for line in last:
        # Unwrapped, so that commands can be copied.
        console.print(Words(line), soft_wrap=True)
