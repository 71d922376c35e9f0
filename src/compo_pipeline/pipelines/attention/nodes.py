"""Measure where phrases look under a run's models, and show it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)


def measure_attention(
    checkpoint: Path,
    control_checkpoint: Path,
    attention: Mapping[str, Any],
    evaluation: Mapping[str, Any],
    model: Mapping[str, Any],
    data: Mapping[str, Any],
) -> pd.DataFrame:
    """Where every phrase looks under every model, a row each."""
    from compo_pipeline.analysis import measuring, questions
    from compo_pipeline.configuration import parse
    from compo_pipeline.datasets.settings import DataSettings
    from compo_pipeline.evaluation.evaluate import loaders
    from compo_pipeline.evaluation.settings import EvaluationSettings
    from compo_pipeline.models.identity import read_record
    from compo_pipeline.models.loading import ModelSettings

    asked = parse(questions.AttentionSettings, attention, "attention")
    settings = parse(EvaluationSettings, evaluation, "evaluation")
    cases, _ = questions.ask(asked, parse(DataSettings, data, "data"))
    base = parse(ModelSettings, model, "model")
    models = loaders(base, control_checkpoint, checkpoint, settings.device)
    made = read_record(checkpoint).get("training", {})
    return measuring.measured(models, cases, made, settings, questions.limits(asked))


def show_attention(
    attention_rows: pd.DataFrame,
    checkpoint: Path,
    run: Mapping[str, Any],
    attention: Mapping[str, Any],
    evaluation: Mapping[str, Any],
    model: Mapping[str, Any],
    data: Mapping[str, Any],
    folder: str,
) -> Path:
    """Grids of images, a page and the rows, kept with the run; the figures on the terminal."""
    from compo_pipeline.analysis import measuring, questions
    from compo_pipeline.analysis.localisation import compare_located
    from compo_pipeline.configuration import parse
    from compo_pipeline.datasets.settings import DataSettings
    from compo_pipeline.evaluation.comparison import BASE, FINE_TUNED
    from compo_pipeline.evaluation.evaluate import loaders
    from compo_pipeline.evaluation.settings import EvaluationSettings
    from compo_pipeline.models.loading import ModelSettings
    from compo_pipeline.presentation import attention_page
    from compo_pipeline.presentation.attention_plots import draw, panels_of
    from compo_pipeline.registry import tracking

    asked = parse(questions.AttentionSettings, attention, "attention")
    settings = parse(EvaluationSettings, evaluation, "evaluation")
    cases, skipped = questions.ask(asked, parse(DataSettings, data, "data"))
    rows = measuring.by_role(attention_rows)
    compared = compare_located([rows], settings.bootstrap)
    models = loaders(parse(ModelSettings, model, "model"), None, checkpoint, settings.device)
    shown = questions.drawn(cases, rows[BASE], asked)
    panels = panels_of(models[BASE](), models[FINE_TUNED](), shown, questions.limits(asked))
    topic = questions.topic(asked)
    written = Path(folder) / topic
    written.mkdir(parents=True, exist_ok=True)
    grids = draw(panels, written)
    name = f"{run['method']}, {run['variant']}, seed {run['seed']}"
    summary = attention_page.summarise(name, compared, rows[BASE], skipped, len(panels))
    page = attention_page.write(summary, grids, written)
    attention_rows.to_csv(written / "attention.csv", index=False)
    with tracking.adopt(run["run_id"]) as record:
        record.artefact(written, f"attention/{topic}")
        record.metrics({"attention": {topic: attention_page.metrics(compared)}})
    attention_page.show(summary, page)
    return Path(folder)
