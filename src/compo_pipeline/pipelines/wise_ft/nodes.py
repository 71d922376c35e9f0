"""Nodes of the pipeline `wise_ft`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from compo_pipeline.analysis.settings import SweepSettings
from compo_pipeline.analysis.wise_ft import load_ends, sweep
from compo_pipeline.evaluation.benchmarks import loading
from compo_pipeline.evaluation.evaluate import loaders
from compo_pipeline.evaluation.settings import BenchmarksSettings, EvaluationSettings
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.models.weights import read_record
from compo_pipeline.presentation import wise_ft_page as page
from compo_pipeline.presentation.pages import links
from compo_pipeline.provenance import page_facts
from compo_pipeline.records import Caption
from compo_pipeline.registry import tracking

log = logging.getLogger(__name__)


def score_mixtures(
    valid_captions: Sequence[Caption],
    checkpoint: Path,
    wise_ft: SweepSettings,
    evaluation: EvaluationSettings,
    benchmarks: BenchmarksSettings,
    model: ModelSettings,
    data_root: Path,
) -> pd.DataFrame:
    """Every metric at every ratio, a row each."""
    ratios = wise_ft.ratios
    subtasks = loading.gather(benchmarks, valid_captions, Path(data_root))
    models = loaders(model, None, checkpoint, evaluation.device)
    base, tuned = load_ends(models, read_record(checkpoint).get("training", {}))
    return pd.DataFrame(sweep(subtasks, base, tuned, ratios, evaluation))


def draw_trade_off(
    wise_ft: pd.DataFrame,
    run: Mapping[str, Any],
    command: Mapping[str, Any],
    paths: Mapping[str, str],
) -> Path:
    """Write the page, the plot and the table; log them to the run; print the trade-off."""
    written = Path(paths["wise_ft_report"])
    written.mkdir(parents=True, exist_ok=True)
    plot = page.trade_off(wise_ft, written / "trade_off.png")
    if not plot:
        log.warning(
            "No trade-off is plotted: it needs all subtasks of SugarCrepe or SugarCrepe++, and "
            "zero-shot classification or retrieval (benchmarks.* says what is scored)."
        )
    means = page.summary(wise_ft)
    wise_ft.to_csv(written / "figures.csv", index=False)
    facts = {
        **page_facts(command, "wise_ft"),
        "recipe": f"{run['method']}, variant {run['variant']}, seed {run['seed']}",
        "MLflow run": run["run_id"],
    }
    report = Path(paths["report"]) / "report.html"
    promotion = Path(paths["promotion_report"]) / "promotion.html"
    pages = {
        "Report": (report, "kedro run --pipeline=evaluation"),
        "Promotion": (promotion, "kedro run --pipeline=promotion"),
    }
    page.write(wise_ft, plot, facts, links(written, pages), written)
    with tracking.adopt(run["run_id"]) as record:
        record.artefact(written, "wise_ft")
        # MLflow's steps are whole numbers: the ratio in per cent.
        steps = means.assign(step=(100 * means.index.to_numpy()).round())
        points = steps.to_dict("records")
        record.curves(({str(k): value for k, value in row.items()} for row in points), "wise_ft")
    page.show(wise_ft)
    return written
