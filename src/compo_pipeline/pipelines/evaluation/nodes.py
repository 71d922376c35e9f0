"""Nodes of the pipeline `evaluation`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from compo_pipeline.benchmarks.foils import NAME as FOILS
from compo_pipeline.benchmarks.items import Subtask
from compo_pipeline.benchmarks.settings import BenchmarksSettings
from compo_pipeline.core.files import record_json
from compo_pipeline.core.hashing import hash_of
from compo_pipeline.core.provenance import Site
from compo_pipeline.core.records import Caption, Foil, Score
from compo_pipeline.core.tables import Splits
from compo_pipeline.evaluation.comparison import (
    BASE,
    CONTROL,
    FINE_TUNED,
    headline_figures,
    item_changes,
    run_metrics,
)
from compo_pipeline.evaluation.conclusions import coverage_lines
from compo_pipeline.evaluation.contamination import training_captions
from compo_pipeline.evaluation.diagnosis.diagnose import Diagnosis
from compo_pipeline.evaluation.evaluate import Comparison
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.evaluation.slices import ItemSlices, item_slices
from compo_pipeline.generation.foils import review
from compo_pipeline.generation.foils.build import shortage
from compo_pipeline.generation.foils.settings import FoilSettings
from compo_pipeline.language.parsing import parses_of
from compo_pipeline.models.weights import read_record
from compo_pipeline.pages import report
from compo_pipeline.pages.pages import Link, links
from compo_pipeline.pages.tables import show
from compo_pipeline.registry import runs as tracking

log = logging.getLogger(__name__)


def slice_items(
    items: Sequence[Subtask],
    valid_captions: Sequence[Caption],
    evaluation: EvaluationSettings,
    language_model: str,
    split: Splits,
) -> ItemSlices:
    """Slices that each benchmark item belongs to, by training captions, sources and texts."""
    kinds = frozenset(evaluation.slices)
    captions = training_captions(valid_captions, split)
    sentences = (text for row in captions for text in row.sentences)
    source_of = {row.image: row.source for row in valid_captions} if "source" in kinds else {}
    return item_slices(items, kinds, partial(parses_of, language_model), sentences, source_of)


def write_report(
    comparison: Comparison,
    scores: Sequence[Score],
    items: Sequence[Subtask],
    diagnosis: Diagnosis,
    foils: Sequence[Foil],
    foils_report: Mapping[str, Any],
    foils_review: Mapping[str, Any],
    training_curves: pd.DataFrame,
    run: Mapping[str, Any],
    checkpoint: Path,
    evaluation: EvaluationSettings,
    benchmarks: BenchmarksSettings,
    foil_settings: FoilSettings,
    site: Site,
) -> tuple[dict[str, str | bytes], dict[str, Any]]:
    """The run's evaluation report and headline figures, which its MLflow run has too.

    It prints them.

    The control's metrics go to its own run.

    Raises:
        SettingsError: the review of foils is one of other items.
    """
    split, rows = benchmarks.foils.split, comparison.rows
    judged = review.draw(foils, split, foils_report["fingerprint"])
    noise = review.noise_by_kind(judged, review.read(foils_review, foils_report, judged))
    pair = comparison.models[BASE].name, comparison.models[FINE_TUNED].name
    changes = item_changes(scores, items, pair)
    trained = read_record(checkpoint).get("training", {}).get("fingerprint", {})
    kinds = foils_report["splits"].get(split, {}).get("kinds", {})
    why = "" if split is None else shortage(foils_report, split, foil_settings)
    page = report.run_page(
        comparison,
        report.change_cards(items, changes, comparison, evaluation.gallery),
        training_curves,
        report.diagnosis_sections(
            diagnosis, "Foils of own captions", site.command, {}, kinds, noise
        ),
        coverage_lines(rows, why),
        {key: trained[key] for key in ("objective", "training") if key in trained},
        _facts(comparison, run, site, benchmarks.root),
        _links(site, foils=any(row.benchmark == FOILS for row in rows)),
        site,
    )
    files = page.files(report.PAGE)
    with tracking.adopt(run["run_id"]) as record:
        record.metrics(run_metrics(rows, FINE_TUNED))
        if CONTROL in comparison.models:
            with tracking.adopt(tracking.child_run(record.run_id, CONTROL)) as beside:
                beside.metrics(run_metrics(rows, CONTROL))
        # Metrics are logged under the benchmarks' names in the code; the tags have their labels.
        names = sorted({row.benchmark for row in rows})
        record.tags({f"benchmark.{name}": comparison.benchmarks[name] for name in names})
        record.document(record_json(comparison), "comparison.json")
        scored = hash_of([(each.items, each.images) for each in comparison.scored])
        record.dataset("benchmarks", scored, benchmarks.root, "evaluation")
        record.page(files, "report")
    show(page, report.HEADLINES, report.LEFT_OUT)
    return files, headline_figures(rows)


def _facts(
    found: Comparison, run: Mapping[str, Any], site: Site, root: str | None
) -> dict[str, str]:
    """Facts about the run for its report, as a mapping from label to text."""
    source = root or "none: retrieval over the data's own captions"
    if found.titles:
        source += f" (not the official files: {', '.join(found.titles.values())})"
    return {
        **site.facts("train_eval"),
        "recipe": f"{found.labels['fine_tuned']}, variant {run['variant']}, seed {run['seed']}",
        **({"rows": run["rows"]} if run.get("rows") else {}),
        "base model": found.models["base"].weights,
        "benchmarks": source,
        "MLflow run": run["run_id"],
    }


def _links(site: Site, *, foils: bool) -> list[Link]:
    """Links from the report to pages of the same dataset and run.

    Some are written by other pipelines, later or never. That of foils is left out where none are
    scored.
    """
    pages = {
        "Data Docs": ("data_docs", "validation"),
        "Counterfactuals": ("counterfactuals_preview", "counterfactuals"),
        "Views": ("views_preview", "views"),
        "WiSE-FT": ("wise_ft_report", "wise_ft"),
        "Attention": ("attention_report", "attention"),
        "Promotion": ("promotion_report", "promotion"),
    }
    if foils:
        pages["Review of foils"] = ("foils_review_page", "foils")
    return links(site.folder("report"), site, pages)
