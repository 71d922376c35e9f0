"""Nodes of the pipeline `evaluation`."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from compo_pipeline.configuration import leaves
from compo_pipeline.evaluation.benchmarks import loading
from compo_pipeline.evaluation.comparison import BASE, CONTROL, FINE_TUNED, by_model, run_metrics
from compo_pipeline.evaluation.contamination import TRAINING_SPLIT, training_rows
from compo_pipeline.evaluation.evaluate import Comparison, evaluate, loaders
from compo_pipeline.evaluation.settings import BenchmarksSettings, EvaluationSettings
from compo_pipeline.evaluation.slices import item_slices
from compo_pipeline.evaluation.verdicts import scored_items
from compo_pipeline.language.parsing import parses_of
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.models.weights import read_record
from compo_pipeline.next_steps import kedro_run
from compo_pipeline.presentation import report
from compo_pipeline.presentation.item_attention import ItemAttention, item_attention
from compo_pipeline.presentation.item_cards import ItemCard
from compo_pipeline.presentation.pages import Link, links
from compo_pipeline.presentation.tables import show_comparison
from compo_pipeline.provenance import page_facts
from compo_pipeline.records import Caption, Fact, Rejected, Score, ScoredItem
from compo_pipeline.registry import tracking

log = logging.getLogger(__name__)


def score_models(
    valid_captions: Sequence[Caption],
    facts: Sequence[Fact],
    checkpoint: Path,
    control_checkpoint: Path,
    run: Mapping[str, Any],
    evaluation: EvaluationSettings,
    benchmarks: BenchmarksSettings,
    model: ModelSettings,
    method: str,
    dataset: str,
    data_root: Path,
    language_model: str,
) -> tuple[Sequence[Score], Sequence[ScoredItem], dict[str, Any], dict[str, Any]]:
    """Scores of every item, the items' shapes, metrics by model for DVC, the comparison."""
    root = Path(data_root)
    subtasks = loading.gather(benchmarks, valid_captions, root)
    if benchmarks.root is None:
        log.info(
            "benchmarks.root is null: %s is judged by retrieval over its own split '%s' alone.",
            dataset,
            benchmarks.retrieval.split,
        )
    control = control_checkpoint if evaluation.control else None
    models = loaders(model, control, checkpoint, evaluation.device)
    known = training_rows(valid_captions, facts, root, evaluation)
    sentences = (
        text for row in valid_captions if row.split == TRAINING_SPLIT for text in row.sentences
    )
    parser = partial(parses_of, language_model)
    slices = item_slices(subtasks, frozenset(evaluation.slices), parser, sentences)
    label = run.get("label", method)
    scores, comparison = evaluate(
        subtasks, models, method, label, dataset, known, evaluation, slices
    )
    metrics = by_model(comparison.rows)
    with tracking.adopt(run["run_id"]) as record:
        record.metrics(run_metrics(comparison.rows, FINE_TUNED))
        if CONTROL in comparison.models:
            with tracking.adopt(tracking.child_run(record.run_id, CONTROL)) as beside:
                beside.metrics(run_metrics(comparison.rows, CONTROL))
        # Metrics are logged under the benchmarks' names in the code; the tags have their labels.
        found = {subtask.benchmark for subtask in subtasks}
        record.tags({f"benchmark.{name}": comparison.benchmarks[name] for name in sorted(found)})
        record.document(comparison.to_json(), "comparison.json")
        record.dataset("benchmarks", _benchmarks_digest(comparison), benchmarks.root, "evaluation")
    return scores, list(scored_items(subtasks, slices)), metrics, comparison.to_json()


def _benchmarks_digest(comparison: Comparison) -> str:
    """Sixteen hexadecimal digits of the benchmarks' items and images."""
    scored = [(each.items, each.images) for each in comparison.scored]
    return hashlib.sha256(f"{scored}".encode()).hexdigest()[:16]


def write_report(
    comparison: Mapping[str, Any],
    scores: Sequence[Score],
    quarantine: list[Rejected],
    training_curves: pd.DataFrame,
    run: Mapping[str, Any],
    checkpoint: Path,
    evaluation: EvaluationSettings,
    benchmarks: BenchmarksSettings,
    command: Mapping[str, Any],
    paths: Mapping[str, str],
    model: ModelSettings,
    language_model: str,
) -> Path:
    """Write the report, log it to the run, and print the table of the comparison."""
    found = Comparison.from_json(comparison)
    folder = Path(paths["report"])
    trained = read_record(checkpoint).get("training", {}).get("fingerprint", {})
    settings = {key: trained[key] for key in ("objective", "training") if key in trained}
    subtasks = loading.from_files(benchmarks)

    def attention(cards: Sequence[ItemCard]) -> ItemAttention:
        load = loaders(model, None, checkpoint, evaluation.device)
        pair, names = (load[BASE](), load[FINE_TUNED]()), ("base", found.labels[FINE_TUNED])
        parser = partial(parses_of, language_model)
        return item_attention(cards, subtasks, pair, names, parser, evaluation.attention)

    inputs = report.ReportInputs(
        comparison=found,
        scores=scores,
        subtasks=subtasks,
        quarantine=quarantine,
        curves=training_curves,
        gallery=evaluation.gallery,
        attention=attention if evaluation.attention else None,
        facts=_facts(found, run, command, settings.get("training", {}), benchmarks.root),
        settings=settings,
        links=_links(folder, paths, command),
    )
    written = report.write(inputs, folder)
    with tracking.adopt(run["run_id"]) as record:
        record.artefact(written, "report")
    show_comparison(found)
    return written


def _facts(
    found: Comparison,
    run: Mapping[str, Any],
    command: Mapping[str, Any],
    training: Mapping[str, Any],
    root: str | None,
) -> dict[str, str]:
    """Where the report comes from; `root` is the folder of the benchmarks."""
    return {
        **page_facts(command, "train_eval"),
        "environment": command["env"] or "base",
        "recipe": f"{found.labels['fine_tuned']}, variant {run['variant']}, seed {run['seed']}",
        "training": _main_settings(training),
        "base model": found.models["base"].weights,
        "benchmarks": _benchmark_source(root, found.titles),
        "MLflow run": run["run_id"],
    }


def _benchmark_source(root: str | None, titles: Mapping[str, str]) -> str:
    """The folder of the benchmarks, and which of its files are not the official ones."""
    if root is None:
        return "none: retrieval over the data's own captions"
    if not titles:
        return root
    return f"{root} (not the official files: {', '.join(titles.values())})"


def _main_settings(training: Mapping[str, Any]) -> str:
    """The main settings of a training by YAML key."""
    found = dict(leaves(training))
    keys = ("epochs", "max_steps", "batch_size", "optimizer.lr", "precision")
    return ", ".join(f"{key} {found[key]}" for key in keys if found.get(key) is not None)


def _links(folder: Path, paths: Mapping[str, str], command: Mapping[str, Any]) -> list[Link]:
    """Pages of the same dataset and run; some are written by other pipelines, later or never."""
    pages = {
        "Data Docs": ("data_docs", "index.html", "validation"),
        "Counterfactuals": ("counterfactuals_preview", "index.html", "counterfactuals"),
        "Views": ("views_preview", "index.html", "views"),
        "WiSE-FT": ("wise_ft_report", "wise_ft.html", "wise_ft"),
        "Attention": ("attention_report", "test/attention.html", "attention"),
        "Promotion": ("promotion_report", "promotion.html", "promotion"),
    }
    return links(
        folder,
        {
            label: (Path(paths[entry]) / page, kedro_run(pipeline, **command))
            for label, (entry, page, pipeline) in pages.items()
        },
    )
