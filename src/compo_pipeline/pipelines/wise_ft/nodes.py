"""Nodes of the pipeline `wise_ft`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from compo_pipeline.benchmarks.items import Subtask
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
from compo_pipeline.tracking import runs as tracking

log = logging.getLogger(__name__)


def score_mixtures(
    items: Sequence[Subtask],
    checkpoint: Path,
    model: ModelSettings,
    wise_ft: SweepSettings,
    evaluation: EvaluationSettings,
) -> pd.DataFrame:
    """Every metric at every ratio, a row each."""
    models = loaders(model, None, checkpoint, evaluation.device)
    base, tuned = load_ends(models, read_record(checkpoint).get("training", {}))
    return pd.DataFrame(sweep(items, base, tuned, wise_ft.ratios, evaluation))


def draw_trade_off(wise_ft: pd.DataFrame, run: Mapping[str, Any], site: Site) -> FolderWriter:
    """The page, the plot and the table; prints the trade-off."""
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
        plot = page.trade_off(wise_ft, folder / "trade_off.png")
        if not plot:
            log.warning(
                "No trade-off is plotted: it needs all subtasks of SugarCrepe or SugarCrepe++, and "
                "zero-shot classification or retrieval (benchmarks.* says what is scored)."
            )
        wise_ft.to_csv(folder / "figures.csv", index=False)
        page.write(wise_ft, plot, facts, beside, folder)

    return write


def log_trade_off(wise_ft: pd.DataFrame, wise_ft_report: Path, run: Mapping[str, Any]) -> None:
    """Log the page and the means by ratio to the run."""
    means = page.summary(wise_ft)
    # MLflow's steps are whole numbers: the ratio in per cent.
    steps = means.assign(step=(100 * means.index.to_numpy()).round())
    points = steps.to_dict("records")
    with tracking.adopt(run["run_id"]) as record:
        record.artefact(wise_ft_report, "wise_ft")
        record.curves(({str(k): value for k, value in row.items()} for row in points), "wise_ft")
