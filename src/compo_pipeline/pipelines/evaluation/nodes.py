"""Nodes of the pipeline `evaluation`."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from compo_pipeline.benchmarks.foils import NAME as FOILS
from compo_pipeline.benchmarks.items import Subtask
from compo_pipeline.benchmarks.loading import not_run_labels
from compo_pipeline.benchmarks.settings import BenchmarksSettings
from compo_pipeline.configuration.settings import leaves
from compo_pipeline.diagnosis.advice import TrainingRun
from compo_pipeline.diagnosis.diagnose import Diagnosis, diagnose
from compo_pipeline.diagnosis.options import RuleSetting
from compo_pipeline.evaluation.comparison import (
    BASE,
    CONTROL,
    FINE_TUNED,
    headline_figures,
    run_metrics,
)
from compo_pipeline.evaluation.conclusions import coverage_lines
from compo_pipeline.evaluation.contamination import TrainingRows
from compo_pipeline.evaluation.evaluate import (
    BenchmarkItems,
    Comparison,
    ScoredRun,
    compare_run,
    loaders,
    score_run,
)
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.evaluation.slices import scored_items
from compo_pipeline.foils import review
from compo_pipeline.foils.build import shortage
from compo_pipeline.foils.settings import FoilSettings
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.models.weights import read_record
from compo_pipeline.presentation import foils_page, report
from compo_pipeline.presentation.item_cards import ItemCard, sampled_cards
from compo_pipeline.presentation.pages import Link, links
from compo_pipeline.presentation.tables import show_comparison
from compo_pipeline.run.provenance import Site
from compo_pipeline.storage.files import FolderWriter
from compo_pipeline.storage.records import Foil, Rejected, Score, ScoredItem
from compo_pipeline.tracking import runs as tracking

log = logging.getLogger(__name__)


def open_models(
    model: ModelSettings, checkpoint: Path, control_checkpoint: Path, evaluation: EvaluationSettings
) -> dict[str, Callable[[], LoadedModel]]:
    """Functions that load the base, control and fine-tuned model, by role."""
    control = control_checkpoint if evaluation.control else None
    return loaders(model, control, checkpoint, evaluation.device)


def score_models(
    items: BenchmarkItems,
    models: Mapping[str, Callable[[], LoadedModel]],
    run: Mapping[str, Any],
    evaluation: EvaluationSettings,
) -> tuple[Sequence[Score], Sequence[ScoredItem], ScoredRun]:
    """Score base, control and fine-tuned model: score rows, item descriptions, models."""
    method = run["method"]
    scored = score_run(items.subtasks, models, method, run.get("label", method), evaluation)
    return scored.rows, list(scored_items(items.subtasks, items.slices)), scored


def compare_models(
    scored: ScoredRun,
    items: BenchmarkItems,
    known: TrainingRows,
    dataset: str,
    evaluation: EvaluationSettings,
    benchmarks: BenchmarksSettings,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Comparison of the scored models as JSON, and its headline figures for DVC."""
    compared = compare_run(scored, items, known, dataset, evaluation)
    comparison = replace(compared, suite=benchmarks.suite or "", not_run=not_run_labels(benchmarks))
    return comparison.to_json(), headline_figures(comparison.rows)


def log_comparison(
    comparison: Mapping[str, Any], run: Mapping[str, Any], benchmarks: BenchmarksSettings
) -> None:
    """Log metrics and comparison to the MLflow run, and the control's metrics to its own run."""
    compared = Comparison.from_json(comparison)
    with tracking.adopt(run["run_id"]) as record:
        record.metrics(run_metrics(compared.rows, FINE_TUNED))
        if CONTROL in compared.models:
            with tracking.adopt(tracking.child_run(record.run_id, CONTROL)) as beside:
                beside.metrics(run_metrics(compared.rows, CONTROL))
        # Metrics are logged under the benchmarks' names in the code; the tags have their labels.
        found = {row.benchmark for row in compared.rows}
        record.tags({f"benchmark.{name}": compared.benchmarks[name] for name in sorted(found)})
        record.document(comparison, "comparison.json")
        record.dataset("benchmarks", _benchmarks_digest(compared), benchmarks.root, "evaluation")


def _benchmarks_digest(comparison: Comparison) -> str:
    """Hash of the scored benchmarks' items and images: sixteen hexadecimal digits."""
    scored = [(each.items, each.images) for each in comparison.scored]
    return hashlib.sha256(f"{scored}".encode()).hexdigest()[:16]


def diagnose_run(
    comparison: Mapping[str, Any],
    training_run: TrainingRun,
    rule_settings: Callable[[], Iterable[RuleSetting]],
) -> dict[str, Any]:
    """Diagnosis of the run: foil kinds that its model misses, and advice; empty without foils."""
    rows = Comparison.from_json(comparison).rows
    return diagnose(rows, BASE, FINE_TUNED, training_run, rule_settings).to_json()


def choose_cards(
    comparison: Mapping[str, Any],
    scores: Sequence[Score],
    items: Sequence[Subtask],
    evaluation: EvaluationSettings,
) -> list[ItemCard]:
    """Random sample of items that the fine-tuned model fixes, breaks or still gets wrong."""
    models = {role: each.name for role, each in Comparison.from_json(comparison).models.items()}
    return sampled_cards(items, scores, models, evaluation.gallery)


def collect_facts(
    comparison: Mapping[str, Any],
    run: Mapping[str, Any],
    checkpoint: Path,
    benchmarks: BenchmarksSettings,
    site: Site,
) -> report.ReportFacts:
    """Facts about the run for its report, its settings, and links to related pages."""
    trained = read_record(checkpoint).get("training", {}).get("fingerprint", {})
    settings = {key: trained[key] for key in ("objective", "training") if key in trained}
    found = Comparison.from_json(comparison)
    facts = _facts(found, run, site, settings.get("training", {}), benchmarks.root)
    foils = any(row.benchmark == FOILS for row in found.rows)
    return report.ReportFacts(facts, settings, site.command, _links(site, foils=foils))


def collect_foils(
    comparison: Mapping[str, Any],
    foils: Sequence[Foil],
    foils_report: Mapping[str, Any],
    foils_review: Mapping[str, Any],
    benchmarks: BenchmarksSettings,
    diagnosis: Mapping[str, Any],
) -> foils_page.FoilsSection:
    """Report section on the scored foils by kind, with review verdicts and the diagnosis.

    Raises:
        SettingsError: the review is one of other items.
    """
    split = benchmarks.foils.split
    drawn = review.draw(foils, split, foils_report["fingerprint"])
    noise = review.noise_by_kind(drawn, review.read(foils_review, foils_report, drawn))
    found = foils_page.section(Comparison.from_json(comparison), foils_report, split, noise)
    return replace(found, diagnosis=Diagnosis.from_json(diagnosis))


def write_report(
    comparison: Mapping[str, Any],
    cards: Sequence[ItemCard],
    quarantine: Sequence[Rejected],
    training_curves: pd.DataFrame,
    foils: foils_page.FoilsSection,
    facts: report.ReportFacts,
) -> FolderWriter:
    """Return a function that writes the run's evaluation report, an HTML page in a folder."""
    found = Comparison.from_json(comparison)
    inputs = report.ReportInputs(found, cards, quarantine, training_curves, foils, facts)
    return partial(report.write, inputs)


def log_report(
    written: Path,
    run: Mapping[str, Any],
    comparison: Mapping[str, Any],
    foils_report: Mapping[str, Any],
    foils: FoilSettings,
    benchmarks: BenchmarksSettings,
) -> None:
    """Log the report to the training's MLflow run; print the comparison and what it measured."""
    with tracking.adopt(run["run_id"]) as record:
        record.artefact(written, "report")
    found, split = Comparison.from_json(comparison), benchmarks.foils.split
    why = "" if split is None else shortage(foils_report, split, foils)
    show_comparison(found, coverage_lines(found.rows, why))


def _facts(
    found: Comparison,
    run: Mapping[str, Any],
    site: Site,
    training: Mapping[str, Any],
    root: str | None,
) -> dict[str, str]:
    """Facts about the run for its report, as a mapping from label to text."""
    return {
        **site.facts("train_eval"),
        "environment": site.command.env or "base",
        "recipe": f"{found.labels['fine_tuned']}, variant {run['variant']}, seed {run['seed']}",
        "training": _main_settings(training),
        **({"rows": run["rows"]} if run.get("rows") else {}),
        "base model": found.models["base"].weights,
        "benchmarks": _benchmark_source(root, found.titles),
        "MLflow run": run["run_id"],
    }


def _benchmark_source(root: str | None, titles: Mapping[str, str]) -> str:
    """Text of the benchmarks' folder, with titles of benchmarks whose files are not official."""
    if root is None:
        return "none: retrieval over the data's own captions"
    if not titles:
        return root
    return f"{root} (not the official files: {', '.join(titles.values())})"


def _main_settings(training: Mapping[str, Any]) -> str:
    """Text of the main settings of a training, such as epochs and learning rate."""
    found = dict(leaves(training))
    keys = ("epochs", "max_steps", "batch_size", "optimizer.lr", "precision")
    return ", ".join(f"{key} {found[key]}" for key in keys if found.get(key) is not None)


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
    return links(
        site.folder("report"),
        {
            label: (site.page(entry), site.run(pipeline))
            for label, (entry, pipeline) in pages.items()
        },
    )
