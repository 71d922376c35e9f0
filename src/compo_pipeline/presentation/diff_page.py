"""Page of the items on which two models differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from compo_pipeline.benchmarks.items import Subtask
from compo_pipeline.evaluation.evaluate import Comparison
from compo_pipeline.presentation import pages
from compo_pipeline.presentation.item_cards import hardest_cards
from compo_pipeline.presentation.tables import difference_text, number_table
from compo_pipeline.run.console import terminal
from compo_pipeline.storage.records import ItemChange

PAGE = "diff.html"


def write(
    diff: Comparison,
    changes: Sequence[ItemChange],
    subtasks: Sequence[Subtask],
    gallery: int,
    facts: Mapping[str, str],
    links: Sequence[pages.Link],
    folder: Path,
) -> Path:
    """Write `diff.html`, the page of items on which two models differ; returns the folder.

    Args:
        diff: the comparison.
        changes: the items that differ.
        subtasks: that were scored.
        gallery: number of items shown of each kind.
        facts: about the run, label to text.
        links: related pages.
        folder: for the page.
    """
    baseline, model = diff.labels.values()
    context = {
        "title": f"{model} against {baseline}",
        "baseline": baseline,
        "model": model,
        "facts": facts,
        "links": links,
        "diff": diff,
        "cards": hardest_cards(subtasks, changes, gallery),
        "kinds": {
            "fixed": f"Only {model} is right",
            "broken": f"Only {baseline} is right",
        },
    }
    pages.write(folder / PAGE, PAGE, context)
    return folder


def show(diff: Comparison, console: Console | None = None) -> None:
    """Print the headline differences of two models, with the numbers of fixed and broken items."""
    baseline, model = diff.labels.values()
    table = number_table(
        f"{model} against {baseline}: points, 95% intervals; items",
        ("difference", "fixed", "broken", "p (Holm)"),
    )
    for row in diff.rows:
        if row.headline:
            found = row.difference
            counts = (f"{found.gained:,}", f"{found.lost:,}", pages.p_value(found.p_holm))
            table.add_row(row.label, difference_text(found), *counts)
    terminal(console).print(table)
