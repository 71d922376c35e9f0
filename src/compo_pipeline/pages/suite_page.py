"""Models side by side on the benchmarks, as a page and in the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from compo_pipeline.benchmarks.registry import BENCHMARKS
from compo_pipeline.evaluation.availability import BenchmarkAvailability
from compo_pipeline.evaluation.evaluate import Comparison
from compo_pipeline.evaluation.published import aggregate_rows
from compo_pipeline.evaluation.roles import ROLE_LABELS
from compo_pipeline.evaluation.suite import reference_rows
from compo_pipeline.pages import pages, plots, tables

PAGE, MARKDOWN = "benchmark.html", "benchmark.md"
FRONTIER = "frontier.png"
HEADLINES, LEFT_OUT = "Headline metrics", "Models and items left out"
_DIFFERENCES = (
    "Points, paired on the same items, with 95% intervals; coloured where significant at 5% after "
    "Holm's correction over all comparisons of this page."
)


def suite_page(
    suite: Comparison,
    title: str,
    facts: Mapping[str, str],
    cards: Sequence[pages.Cards] = (),
) -> pages.Page:
    """The page of several models' scores, and its plot.

    Args:
        suite: the scored models.
        title: title of the page.
        facts: about the run.
        cards: sections of items on which models differ from the first one.
    """
    first, *others = suite.models
    labels = {name: name for name in suite.models}
    further = ["chance", tables.DETECTABLE] if others else ["chance"]
    models = [(name, model.weights, model.fingerprint[:16]) for name, model in suite.models.items()]
    sections = [
        tables.metrics_table(
            *(suite.headlines, labels, (), further), title=HEADLINES, note=tables.PER_CENT
        ),
        tables.aggregates_table(aggregate_rows(suite), [*labels]),
        *_frontier(suite),
        tables.metrics_table(
            suite.headlines if others else (),
            {},
            others,
            title=f"Differences from {first}",
            note=_DIFFERENCES,
        ),
        tables.metrics_table(
            *(suite.rows, labels, (), ["skipped"]), title="All metrics", folded=True
        ),
        *tables.published_tables(reference_rows(suite), labels),
        *cards,
        pages.Table(("model", "weights", "fingerprint"), models, ["weights"], title="Models"),
        pages.List([f"{one}." for one in suite.left_out], title=LEFT_OUT),
    ]
    count = f"{len(suite.models)} models, the first is the baseline" if others else "one model"
    return pages.Page(title, f"Benchmarks: {count}", sections, facts=facts)


def _frontier(suite: Comparison) -> list[pages.Plot]:
    """Scatter plots of the models: composition against zero-shot accuracy and retrieval."""
    values = [
        (name, ROLE_LABELS[BENCHMARKS[row.benchmark].role], estimate.value)
        for row in suite.headlines
        for name, estimate in row.values.items()
    ]
    means = pd.DataFrame(values, columns=["model", "role", "value"]).pivot_table(
        "value", "model", "role", sort=False
    )
    shown = means.reindex(columns=[*ROLE_LABELS.values()]).dropna(axis="columns")
    note = "Means of the headline metrics of each kind. The square is the baseline."
    return plots.scatter(shown, FRONTIER, "Composition against what it may cost", note)


def show_available(benchmarks: Sequence[BenchmarkAvailability]) -> None:
    """Print which benchmarks are present, with their numbers of items, and which are missing."""
    columns = ("name", "benchmark", "subtasks", "items", "images", "missing images", "state")
    rows: list[list[pages.CellLike]] = []
    lines = []
    for one in benchmarks:
        counts = (one.subtasks, one.items, one.images, one.missing_images)
        shown = counts if one.items else [""] * len(counts)
        rows.append([one.benchmark.name, one.benchmark.label, *shown, one.state])
        if one.lines:
            place = f" in {one.folder}" if one.folder else ""
            lines += [f"{one.benchmark.name}{place}:", *(f"  {line}" for line in one.lines)]
    table = pages.Table(columns, rows, ["benchmark", "state"])
    tables.show(pages.Page("", "", [table, pages.List(lines)]))
