"""Nodes of the pipeline `attention`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from compo_pipeline.datasets.quality.settings import IngestSettings
from compo_pipeline.datasets.settings import DataSettings
from compo_pipeline.evaluation.analysis.cases import AttentionCases, find_cases, image_limits
from compo_pipeline.evaluation.analysis.localisation import (
    cases_to_draw,
    compare_located,
    measure_models,
    rows_by_role,
)
from compo_pipeline.evaluation.analysis.settings import AttentionSettings
from compo_pipeline.evaluation.comparison import BASE, FINE_TUNED
from compo_pipeline.evaluation.evaluate import loaders
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.models.weights import read_record
from compo_pipeline.presentation import attention_page
from compo_pipeline.presentation.attention_plots import AttentionPanel, draw, panels_of
from compo_pipeline.storage.files import FolderWriter
from compo_pipeline.tracking import runs as tracking


def choose_cases(
    attention: AttentionSettings, data: DataSettings, ingest: IngestSettings
) -> AttentionCases:
    """The phrases to measure with their images, and counts of skipped phrases by reason."""
    cases, skipped = find_cases(attention, data)
    return AttentionCases(cases, skipped, image_limits(attention, ingest))


def measure_attention(
    chosen: AttentionCases,
    checkpoint: Path,
    control_checkpoint: Path,
    model: ModelSettings,
    evaluation: EvaluationSettings,
) -> pd.DataFrame:
    """Table of the attention of every phrase under every model, one row each."""
    models = loaders(model, control_checkpoint, checkpoint, evaluation.device)
    training_record = read_record(checkpoint).get("training", {})
    return measure_models(models, chosen.cases, training_record, evaluation, chosen.limits)


def draw_attention(
    attention_rows: pd.DataFrame,
    chosen: AttentionCases,
    checkpoint: Path,
    model: ModelSettings,
    evaluation: EvaluationSettings,
    attention: AttentionSettings,
) -> list[AttentionPanel]:
    """Attention maps of base and fine-tuned model over the images of some phrases."""
    models = loaders(model, None, checkpoint, evaluation.device)
    drawn = cases_to_draw(chosen.cases, rows_by_role(attention_rows)[BASE], attention)
    return panels_of(models[BASE](), models[FINE_TUNED](), drawn, chosen.limits)


def write_attention(
    attention_rows: pd.DataFrame,
    panels: Sequence[AttentionPanel],
    chosen: AttentionCases,
    run: Mapping[str, Any],
    attention: AttentionSettings,
) -> FolderWriter:
    """Return a function that writes image grids, HTML page and CSV, and prints a table."""
    name = f"{run['method']}, {run['variant']}, seed {run['seed']}"
    rows = rows_by_role(attention_rows)
    compared = compare_located([rows])
    summary = attention_page.AttentionSummary(
        name, compared, rows[BASE], chosen.skipped, len(panels)
    )

    def write(folder: Path) -> None:
        written = folder / attention.topic
        written.mkdir(parents=True, exist_ok=True)
        page = attention_page.write(summary, draw(panels, written), written)
        attention_rows.to_csv(written / "attention.csv", index=False)
        attention_page.show(summary, page)

    return write


def log_attention(
    attention_rows: pd.DataFrame,
    attention_report: Path,
    run: Mapping[str, Any],
    attention: AttentionSettings,
) -> None:
    """Log the attention page and metrics to the training's MLflow run."""
    topic, compared = attention.topic, compare_located([rows_by_role(attention_rows)])
    with tracking.adopt(run["run_id"]) as record:
        record.artefact(attention_report / topic, f"attention/{topic}")
        record.metrics({"attention": {topic: attention_page.metrics(compared)}})
