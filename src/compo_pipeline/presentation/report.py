"""Report of a run: one self-contained page, and its plots beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from compo_pipeline.evaluation.aggregates import aggregate_rows
from compo_pipeline.evaluation.comparison import CONTROL, FINE_TUNED, ROLES, Row
from compo_pipeline.evaluation.conclusions import MAIN_METRICS, TEXT_ONLY, summary_sentence
from compo_pipeline.evaluation.evaluate import Comparison
from compo_pipeline.evaluation.published import published_results
from compo_pipeline.presentation import diagnosis_page, pages, plots
from compo_pipeline.presentation.diagnosis_page import ENVIRONMENT
from compo_pipeline.presentation.foils_page import FoilsSection
from compo_pipeline.presentation.item_cards import ItemCard
from compo_pipeline.run.provenance import CommandOptions
from compo_pipeline.storage.records import Rejected

PAGE = "report.html"
SUBTASKS = "subtasks.png"
CURVES = "curves.png"


@dataclass(frozen=True, slots=True)
class ReportFacts:
    """What a report says about its run: facts, training settings, command, related pages."""

    facts: Mapping[str, str]
    """Facts about the run, label to text: date, command, commit, recipe, ..."""
    settings: Mapping[str, Any]
    """Settings of the training."""
    command: CommandOptions = field(default_factory=CommandOptions)
    """Options of the run."""
    links: Sequence[pages.Link] = ()
    """Related pages."""


@dataclass(frozen=True, slots=True)
class ReportInputs:
    """Inputs of a run's report: comparison, item cards, curves, rejected rows and foils."""

    comparison: Comparison
    cards: Sequence[ItemCard]
    """Items that are shown."""
    quarantine: Sequence[Rejected]
    """Rows that validation rejected."""
    curves: pd.DataFrame
    """Training curves, with a `step` column."""
    foils: FoilsSection
    """Foils of own captions by kind."""
    facts: ReportFacts
    """Where it comes from."""


def write(inputs: ReportInputs, folder: Path) -> Path:
    """Write a run's `report.html`, its plots with tables, and the environment that is advised.

    The page itself needs no other file and no network.
    """
    folder.mkdir(parents=True, exist_ok=True)
    comparison = inputs.comparison
    rows, labels = comparison.rows, comparison.labels
    models = {role: model.name for role, model in comparison.models.items()}
    context = {
        "title": f"{labels[FINE_TUNED]} on {comparison.dataset}",
        "facts": inputs.facts.facts,
        "links": inputs.facts.links,
        "settings": yaml.safe_dump(dict(inputs.facts.settings), sort_keys=False),
        "sentence": summary_sentence(rows),
        "comparison": comparison,
        "aggregates": aggregate_rows(comparison),
        "models": models,
        "labels": labels,
        "name": labels[FINE_TUNED],
        "ours": FINE_TUNED,
        "opponents": [role for role in models if role != FINE_TUNED],
        "headlines": _by_benchmark([row for row in rows if row.headline]),
        "every": _by_benchmark(rows),
        "keys": _key_rows(rows),
        "limit": _plot_limit(rows),
        "coarse": any(row.headline and row.difference.coarse for row in rows),
        "tally": Counter(row.difference.significance for row in rows),
        "benchmarks": comparison.benchmarks,
        "subtask_plot": plots.subtasks(rows, labels, folder / SUBTASKS),
        "foils": inputs.foils,
        "environment": ENVIRONMENT,
        "curve_plot": plots.curves(inputs.curves, folder / CURVES),
        "cards": inputs.cards,
        "published": published_results(
            rows, coco=comparison.dataset == "coco", deviating=comparison.deviating
        ),
        "quarantine": Counter(row.rule for row in inputs.quarantine).most_common(),
        "quarantined": len({(row.row, row.sample_id, row.image) for row in inputs.quarantine}),
    }
    pages.write(folder / PAGE, PAGE, context)
    _write_plotted(rows, inputs.curves, folder / "plots")
    diagnosis = inputs.foils.diagnosis
    diagnosis_page.write_advised(diagnosis, inputs.facts.command, folder / ENVIRONMENT, {})
    return folder


def _write_plotted(rows: Sequence[Row], curves: pd.DataFrame, folder: Path) -> None:
    """Write tables for DVC's plots: accuracy on subtasks, and loss by step, of each role.

    DVC wants every file: that of an absent model has no rows.
    """
    folder.mkdir(exist_ok=True)
    subtasks = [row for row in rows if plots.is_subtask(row)]
    for role in ROLES:
        values = [(row.label, row.values[role].value) for row in subtasks if role in row.values]
        table = pd.DataFrame(values, columns=["subtask", "per_cent"])
        table.to_csv(folder / f"{role}.csv", index=False)
    losses = dict.fromkeys((FINE_TUNED, CONTROL), pd.DataFrame(columns=["step", "loss"]))
    for model, own in curves.groupby("model") if "model" in curves else ():
        # A method that alternates between objectives has a column of its own loss.
        loss = own[["step"]].assign(loss=own.get(model, own["loss"]))
        losses[CONTROL if model == CONTROL else FINE_TUNED] = loss.dropna()
    for role, table in losses.items():
        table.to_csv(folder / f"{role}_loss.csv", index=False)


def _by_benchmark(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Group the rows of metrics by benchmark, in the order of their first rows."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.benchmark, []).append(row)
    return groups


def _key_rows(rows: Sequence[Row]) -> list[Row]:
    """Rows of the main metrics for the top of the report, at most four."""
    found = {row.key: row for row in rows}
    keys = [found[key] for key in (*MAIN_METRICS, TEXT_ONLY) if key in found]
    return (keys + [row for row in rows if row.metric == "i2t_r1"])[:4]


def _plot_limit(rows: Iterable[Row]) -> float:
    """Axis limit of the small interval plots, from the largest headline difference."""
    ends = [1.0]
    for row in rows:
        for difference in row.differences:
            if row.headline:
                ends += [abs(difference.low), abs(difference.high)]
    return max(ends) * 1.05
