"""Tables of results, which pages and the terminal show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import rich.table
from rich.console import Console
from rich.text import Text as Words

from compo_pipeline.core.console import table as plain_table
from compo_pipeline.core.console import terminal
from compo_pipeline.evaluation.comparison import (
    FINE_TUNED,
    Difference,
    Estimate,
    Pair,
    Row,
    run_pairs,
)
from compo_pipeline.evaluation.contamination import Overlap
from compo_pipeline.evaluation.evaluate import Comparison
from compo_pipeline.evaluation.suite import PublishedResults, aggregate_rows
from compo_pipeline.models.cost import ModelCost
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

_STYLES = {"good": "green", "bad": "red", "above": "green", "below": "red", "level": "dim"}
PER_CENT = (
    "Per cent, with 95% intervals. Green is above the first model and red below it, where the "
    "paired difference is significant at 5% after Holm's correction over all comparisons."
)
PER_CENT_OF_SEVERAL = PER_CENT.replace("the first model", "the own base")
DETECTABLE = "detectable"
_DETECTABLE_NOTE = (
    " Detectable: the true difference from the first model that a test at 5% finds with a power of "
    "80%."
)
_ANY_WIDTH = 1000  # of a terminal, in columns
# A cell for each metric.
_COLUMNS: dict[str, Callable[[Row], CellLike]] = {
    "skipped": lambda row: row.skipped,
    "chance": lambda row: row.chance,
    "gained": lambda row: row.difference.gained,
    "lost": lambda row: row.difference.lost,
    "p": lambda row: p_value(row.difference.p),
    "Holm": lambda row: p_value(row.difference.p_holm),
    DETECTABLE: lambda row: row.difference.least_detectable if row.differences else None,
}
NOT_MEASURED = Cell("not measured")


def estimate_cell(estimate: Estimate, kind: str = "") -> Cell:
    """A value with its interval."""
    return Cell(estimate.value, kind, interval(estimate.low, estimate.high))


def difference_cell(found: Difference) -> Cell:
    """A paired difference with its interval."""
    value, _, ends = found.format().partition(" ")
    return Cell(value, found.significance, ends)


def points(difference: float | None) -> str | None:
    """A difference in points, with its sign."""
    return None if difference is None else f"{difference:+.1f}"


def metrics_table(
    rows: Iterable[Row],
    labels: Mapping[str, str],
    differences: Mapping[Pair, str] = MappingProxyType({}),
    further: Sequence[str] = (),
    **section: Any,
) -> Table:
    """A table of metrics: values of each model with intervals, coloured by their significance.

    Args:
        rows: the metrics.
        labels: labels of the models, by their keys in the rows.
        differences: heads of the differences that stand behind the values, by their two models.
        further: columns behind these: skipped, chance, gained, lost, p, Holm, detectable.
        section: title and note of the section, and whether it is folded.
    """
    lines = []
    for row in rows:
        kinds = {each.model: each.significance for each in reversed(row.differences)}
        values = [
            estimate_cell(row.values[role], kinds.get(role, "").replace("level", ""))
            if role in row.values
            else NOT_MEASURED
            for role in labels
        ]
        found = {(each.model, each.against): difference_cell(each) for each in row.differences}
        values += [found.get(pair, NOT_MEASURED) for pair in differences]
        label = f"{row.slice} {row.label}".strip()
        lines.append([label, row.items, *values, *(_COLUMNS[name](row) for name in further)])
    if DETECTABLE in further:
        section["note"] = section.get("note", "") + _DETECTABLE_NOTE
    heads = [*labels.values(), *differences.values()]
    return Table(["metric", "n", *heads, *further], lines, **section)


def run_heads(labels: Mapping[str, str]) -> dict[Pair, str]:
    """Heads of the differences of a run's fine-tuned model, from the labels by role."""
    return {pair: f"{labels[FINE_TUNED]} - {pair[1]}" for pair in run_pairs(labels)}


def headline_table(comparison: Comparison, title: str) -> Table:
    """The headline metrics of a run's models, with the differences of the fine-tuned one."""
    labels, rows = comparison.labels, comparison.headlines
    return metrics_table(rows, labels, run_heads(labels), [DETECTABLE], title=title, note=PER_CENT)


def costs_table(suite: Comparison) -> Table:
    """Cost of each model and its base or baseline, without rows where all are alike."""
    base = {name: suite.against.get(name, name) for name in suite.models}
    alike = len({(base[name], model.cost) for name, model in suite.models.items()}) == 1
    lines: list[list[CellLike]] = []
    for name, model in () if alike else suite.models.items():
        cost = model.cost or ModelCost((0.0, 0.0))
        counted = [each or None for each in (*reversed(cost.parameters), *cost.gflops)]
        lines.append([name, base[name] if name in suite.against else "", *counted])
    return Table(
        ["model", "compared with", "parameters, M", "image tower, M", "GFLOPs image", "text"],
        lines,
        ["compared with"],
        title="Cost",
        note="Of one image and one text; a multiplication and an addition are two operations.",
    )


def detectable_table(rows: Iterable[Row], heads: Mapping[Pair, str]) -> Table:
    """The least detectable difference of each model in each metric."""
    return Table(
        ["metric", *heads.values()],
        [
            [
                row.label,
                *(
                    each.least_detectable
                    for each in row.differences
                    if (each.model, each.against) in heads
                ),
            ]
            for row in rows
        ],
        title="Least detectable differences",
        note="Points: the true difference from the own base that a test at 5% finds with a power "
        "of 80%.",
    )


def aggregates_table(comparison: Comparison) -> Table:
    """Means over benchmarks that papers report."""
    labels = comparison.labels.values()
    lines = [
        [Cell(row.label, "words", row.remark), *(row.values or [None] * len(labels)), row.source]
        for row in aggregate_rows(comparison)
    ]
    columns = ["average", *labels, "in the paper"]
    return Table(columns, lines, ["in the paper"], title="The papers' averages")


def published_tables(
    found: Iterable[PublishedResults], labels: Mapping[str, str]
) -> Iterator[Table]:
    """Yield a table for each paper: values of the models beside the published ones."""
    for paper, rows in ((one.paper, one.rows) for one in found):
        yield Table(
            ["metric", *(f"{label} (here)" for label in labels.values()), *paper.models],
            [
                [
                    row.label,
                    *(row.values[role].value if role in row.values else None for role in labels),
                    *own,
                ]
                for row, own in rows
            ],
            title=f"Published: {paper.title}",
            note=f"Not measured here; shown where all official items were scored. {paper.source}",
        )


def overlaps_table(overlaps: Sequence[Overlap], benchmarks: Mapping[str, str]) -> Table:
    """How many images and texts of each subtask are in the training rows."""
    return Table.of(
        (
            (
                one,
                f"{benchmarks[one.benchmark]} {one.subtask.replace('_', ' ')}",
                counted(one.bindings) or "–",
            )
            for one in overlaps
        ),
        "subtask | images | same bytes | same name | captions | same words | "
        "attribute-object pairs",
        "{1} | {0.images:,} | {0.same_bytes:,} | {0.same_name:,} | {0.captions:,} | "
        "{0.same_caption:,} | {2}",
        title="Overlap with the training rows",
        note="Of each subtask's distinct images and true captions, how many are also in the "
        "training split: images by their bytes, by their file name (meaningful if names are "
        "global, as in COCO); captions by their words, sentence against sentence.",
    )


def print_table(section: Table, console: Console) -> None:
    """Print the table of a page; where it is too wide, differences alone keep their intervals."""
    table = _rich_table(section, narrow=False)
    options = console.options.update(width=_ANY_WIDTH)
    if console.measure(table, options=options).maximum > console.width:
        table = _rich_table(section, narrow=True)
    console.print(table)


def _rich_table(section: Table, *, narrow: bool) -> rich.table.Table:
    note = section.note.removesuffix(_DETECTABLE_NOTE) if narrow else section.note
    table = plain_table(note.replace("`", "") or None, collapse_padding=True)
    shown = [
        place for place, name in enumerate(section.columns) if not (narrow and name == DETECTABLE)
    ]
    for place in shown:
        words = not place or section.columns[place] in section.words
        table.add_column(
            section.columns[place],
            justify="left" if words else "right",
            no_wrap=not words,
            overflow="fold" if words else "ellipsis",  # a command is shown whole
        )
    for line in section.lines:
        texts = []
        for cell in (line[place] for place in shown):
            small = "" if narrow and cell.text[:1] not in "+-" else cell.small
            texts.append(Words(f"{cell.text} {small}".strip(), _STYLES.get(cell.kind, "")))
        table.add_row(*texts)
    return table


def show(page: Page, *titles: str, console: Console | None = None) -> None:
    """Print tables, lists and lines to copy of a page, and its summary, on the terminal.

    Args:
        page: the page.
        titles: titles of the sections to show. Empty shows all that are not folded.
        console: where to print, in place of the standard output.
    """
    console = terminal(console)
    lines: list[str] = []
    for section in page.sections:
        if section.folded or not section.shown or (titles and section.title not in titles):
            continue
        if isinstance(section, Table):
            print_table(section, console)
        elif isinstance(section, List):
            lines += section.items
        elif isinstance(section, Text):
            lines += section.text, section.code
    for line in (*lines, page.title, *page.summary):
        # Unwrapped, so that commands can be copied.
        console.print(line, markup=False, highlight=False, soft_wrap=True)
