"""Nodes of the pipeline `attention`."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from compo_pipeline.core.files import write_files
from compo_pipeline.core.provenance import Site
from compo_pipeline.core.records import Caption
from compo_pipeline.data.images.decoding import ACCEPTED
from compo_pipeline.evaluation.analysis.attention import find_cases
from compo_pipeline.evaluation.comparison import BASE, FINE_TUNED
from compo_pipeline.evaluation.evaluate import loaders, require_base
from compo_pipeline.evaluation.settings import AttentionSettings, EvaluationSettings
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.models.weights import read_record
from compo_pipeline.pages import attention_plots
from compo_pipeline.registry import runs as tracking

log = logging.getLogger(__name__)


def draw_attention(
    valid_captions: Iterable[Caption],
    checkpoint: Path,
    run: Mapping[str, Any],
    model: ModelSettings,
    evaluation: EvaluationSettings,
    root: Path,
    language_model: str,
    attention: AttentionSettings,
    site: Site,
) -> Path:
    """Draw the attention of phrases under base and fine-tuned model, and log grids and page.

    Returns:
        The folder of all pages: each split, and own images, have one.
    """
    cases = find_cases(attention, valid_captions, root, language_model)
    models = loaders(model, None, checkpoint, evaluation.device)
    base, tuned = models[BASE](), models[FINE_TUNED]()
    require_base(base, read_record(checkpoint).get("training", {}))
    panels = attention_plots.panels_of(base, tuned, cases, ACCEPTED)
    name = f"{run['method']}, {run['variant']}, seed {run['seed']}"
    folder = site.folder("attention_report").parent
    files = attention_plots.attention_page(name, panels).files("attention.html")
    write_files(files, folder / attention.topic)
    log.info("%d of %d phrases are drawn.", len(panels), len(cases))
    with tracking.adopt(run["run_id"]) as record:
        record.page(files, f"attention/{attention.topic}")
    return folder
