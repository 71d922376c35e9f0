"""Nodes of the pipeline `wise_ft`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from compo_pipeline.benchmarks import loading
from compo_pipeline.benchmarks.settings import BenchmarksSettings
from compo_pipeline.core.provenance import Site
from compo_pipeline.core.records import Caption, Foil
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.evaluation.analysis.wise_ft import RATIOS, load_ends, sweep
from compo_pipeline.evaluation.evaluate import loaders
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.models.weights import read_record
from compo_pipeline.pages import wise_ft_page as page
from compo_pipeline.pages.pages import links
from compo_pipeline.pages.tables import show
from compo_pipeline.registry import runs as tracking
from compo_pipeline.tuning.selection import study_items

log = logging.getLogger(__name__)


def score_mixtures(
    valid_captions: Sequence[Caption],
    foils: Sequence[Foil],
    checkpoint: Path,
    model: ModelSettings,
    selecting: BenchmarksSettings,
    benchmarks: BenchmarksSettings,
    evaluation: EvaluationSettings,
    root: Path,
) -> pd.DataFrame:
    """Table of every metric at every WiSE-FT ratio, on reported and on held-out items.

    The held-out items (`selecting`) choose a ratio; there may be none, and none is reported.
    """
    models = loaders(model, None, checkpoint, evaluation.device)
    record = read_record(checkpoint).get("training", {})
    own = valid_captions, root, foils
    items = {page.REPORTED: loading.gather(benchmarks, *own)}
    try:
        given = selecting, benchmarks, valid_captions, root, evaluation.workers, foils
        items[page.VALIDATION] = study_items(*given)
    except SettingsError as error:
        log.warning("No ratio is chosen: %s", error.message)
    tables = [
        sweep(tasks, *load_ends(models, record), RATIOS, evaluation).assign(measured_on=name)
        for name, tasks in items.items()
        if tasks
    ]
    return pd.concat(tables, ignore_index=True)


def draw_trade_off(
    wise_ft: pd.DataFrame, run: Mapping[str, Any], site: Site
) -> dict[str, str | bytes]:
    """Page, plot and table of the metrics by ratio, which the training's MLflow run has too."""
    facts = {
        **site.facts("wise_ft"),
        "recipe": f"{run['method']}, variant {run['variant']}, seed {run['seed']}",
        "MLflow run": run["run_id"],
    }
    pages = {
        "Report": ("report", "evaluation"),
        "Promotion": ("promotion_report", "promotion"),
    }
    beside = links(site.folder("wise_ft_report"), site, pages)
    shown = page.wise_ft_page(wise_ft, facts, beside, site.run("NAME"))
    show(shown, page.BY_RATIO)
    files = {**shown.files(page.PAGE), "figures.csv": wise_ft.to_csv(index=False)}
    means = page.means_by_ratio(wise_ft[wise_ft.measured_on == page.REPORTED])
    # MLflow's steps are whole numbers: the ratio in per cent.
    points = means.assign(step=(100 * means.index.to_numpy()).round()).to_dict("records")
    with tracking.adopt(run["run_id"]) as record:
        record.page(files, "wise_ft")
        record.curves(({str(k): v for k, v in row.items()} for row in points), "wise_ft")
    return files
