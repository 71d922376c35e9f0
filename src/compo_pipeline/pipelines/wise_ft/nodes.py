"""Nodes of the pipeline `wise_ft`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from compo_pipeline.benchmarks.items import Subtask
from compo_pipeline.benchmarks.settings import BenchmarksSettings
from compo_pipeline.configuration.settings import SettingsError
from compo_pipeline.evaluation.analysis.settings import SweepSettings
from compo_pipeline.evaluation.analysis.wise_ft import load_ends, sweep
from compo_pipeline.evaluation.evaluate import loaders
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.models.weights import read_record
from compo_pipeline.presentation import wise_ft_page as page
from compo_pipeline.presentation.pages import links
from compo_pipeline.run.provenance import Site
from compo_pipeline.storage.files import FolderWriter
from compo_pipeline.storage.records import Caption, Foil
from compo_pipeline.tracking import runs as tracking
from compo_pipeline.tuning.selection import study_items

log = logging.getLogger(__name__)


def choose_validation_items(
    valid_captions: Sequence[Caption],
    foils: Sequence[Foil],
    validation: BenchmarksSettings,
    benchmarks: BenchmarksSettings,
    root: Path,
    evaluation: EvaluationSettings,
) -> Sequence[Subtask]:
    """Held-out items (of `tuning`) that choose a WiSE-FT ratio; may be empty.

    None of them is reported.
    """
    try:
        return study_items(
            validation, benchmarks, valid_captions, Path(root), evaluation.workers, foils
        )
    except SettingsError as error:
        log.warning("No ratio is chosen: %s", error.message)
        return []


def score_mixtures(
    items: Sequence[Subtask],
    validation_items: Sequence[Subtask],
    checkpoint: Path,
    model: ModelSettings,
    wise_ft: SweepSettings,
    evaluation: EvaluationSettings,
) -> pd.DataFrame:
    """Table of every metric at every WiSE-FT ratio, on reported and validation items."""
    models = loaders(model, None, checkpoint, evaluation.device)
    record = read_record(checkpoint).get("training", {})
    tables = []
    for name, subtasks in ((page.REPORTED, items), (page.VALIDATION, validation_items)):
        if subtasks:
            results = sweep(subtasks, *load_ends(models, record), wise_ft.ratios, evaluation)
            tables.append(pd.DataFrame(results).assign(measured_on=name))
    return pd.concat(tables, ignore_index=True)


def draw_trade_off(wise_ft: pd.DataFrame, run: Mapping[str, Any], site: Site) -> FolderWriter:
    """Return a function that writes the WiSE-FT page, plot and table; prints the trade-off."""
    facts = {
        **site.facts("wise_ft"),
        "recipe": f"{run['method']}, variant {run['variant']}, seed {run['seed']}",
        "MLflow run": run["run_id"],
    }
    pages = {
        "Report": (site.page("report"), site.run("evaluation")),
        "Promotion": (site.page("promotion_report"), site.run("promotion")),
    }
    beside = links(site.folder("wise_ft_report"), pages)
    page.show(wise_ft)

    def write(folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        plot = page.trade_off(_reported_rows(wise_ft), folder / "trade_off.png")
        wise_ft.to_csv(folder / "figures.csv", index=False)
        page.write(wise_ft, plot, facts, beside, folder)

    return write


def log_trade_off(wise_ft: pd.DataFrame, wise_ft_report: Path, run: Mapping[str, Any]) -> None:
    """Log the WiSE-FT page and the mean metrics by ratio to the MLflow run."""
    means = page.summary(_reported_rows(wise_ft))
    # MLflow's steps are whole numbers: the ratio in per cent.
    steps = means.assign(step=(100 * means.index.to_numpy()).round())
    points = steps.to_dict("records")
    with tracking.adopt(run["run_id"]) as record:
        record.artefact(wise_ft_report, "wise_ft")
        record.curves(({str(k): value for k, value in row.items()} for row in points), "wise_ft")


def _reported_rows(wise_ft: pd.DataFrame) -> pd.DataFrame:
    """Rows of the WiSE-FT table that were measured on the reported benchmark items."""
    return wise_ft[wise_ft.measured_on == page.REPORTED]
