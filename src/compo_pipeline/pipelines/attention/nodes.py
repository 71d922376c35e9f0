"""Nodes of the pipeline `attention`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from compo_pipeline.analysis.cases import find_cases, image_limits
from compo_pipeline.analysis.localisation import (
    cases_to_draw,
    compare_located,
    measure_models,
    rows_by_role,
)
from compo_pipeline.analysis.settings import AttentionSettings
from compo_pipeline.datasets.settings import DataSettings
from compo_pipeline.evaluation.comparison import BASE, FINE_TUNED
from compo_pipeline.evaluation.evaluate import loaders
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.models.weights import read_record
from compo_pipeline.presentation import attention_page
from compo_pipeline.presentation.attention_plots import draw, panels_of
from compo_pipeline.quality.settings import IngestSettings
from compo_pipeline.registry import tracking


def measure_attention(
    checkpoint: Path,
    control_checkpoint: Path,
    attention: AttentionSettings,
    evaluation: EvaluationSettings,
    model: ModelSettings,
    data: DataSettings,
    ingest: IngestSettings,
) -> pd.DataFrame:
    """Attention of every phrase under every model, a row each."""
    cases, _ = find_cases(attention, data)
    models = loaders(model, control_checkpoint, checkpoint, evaluation.device)
    training_record = read_record(checkpoint).get("training", {})
    limits = image_limits(attention, ingest)
    return measure_models(models, cases, training_record, evaluation, limits)


def show_attention(
    attention_rows: pd.DataFrame,
    checkpoint: Path,
    run: Mapping[str, Any],
    attention: AttentionSettings,
    evaluation: EvaluationSettings,
    model: ModelSettings,
    data: DataSettings,
    ingest: IngestSettings,
    folder: str,
) -> Path:
    """Write grids of images, a page and the rows; log them to the run; print the table."""
    cases, skipped = find_cases(attention, data)
    rows = rows_by_role(attention_rows)
    compared = compare_located([rows])
    models = loaders(model, None, checkpoint, evaluation.device)
    drawn = cases_to_draw(cases, rows[BASE], attention)
    limits = image_limits(attention, ingest)
    panels = panels_of(models[BASE](), models[FINE_TUNED](), drawn, limits)
    written = Path(folder) / attention.topic
    written.mkdir(parents=True, exist_ok=True)
    grids = draw(panels, written)
    name = f"{run['method']}, {run['variant']}, seed {run['seed']}"
    summary = attention_page.AttentionSummary(name, compared, rows[BASE], skipped, len(panels))
    page = attention_page.write(summary, grids, written)
    attention_rows.to_csv(written / "attention.csv", index=False)
    with tracking.adopt(run["run_id"]) as record:
        record.artefact(written, f"attention/{attention.topic}")
        record.metrics({"attention": {attention.topic: attention_page.metrics(compared)}})
    attention_page.show(summary, page)
    return Path(folder)
