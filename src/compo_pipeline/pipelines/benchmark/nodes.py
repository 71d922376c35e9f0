"""Nodes of the pipeline `benchmark`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from compo_pipeline.benchmarks.items import Subtask
from compo_pipeline.benchmarks.settings import BenchmarksSettings
from compo_pipeline.datasets.settings import DataSettings
from compo_pipeline.evaluation.comparison import by_model
from compo_pipeline.evaluation.contamination import (
    TrainingRows,
    read_training_tables,
    training_rows,
)
from compo_pipeline.evaluation.evaluate import BenchmarkItems
from compo_pipeline.evaluation.settings import EvaluationSettings, SliceKind, SuiteSettings
from compo_pipeline.evaluation.suite import Suite, score_suite
from compo_pipeline.language.parsing import parses_of
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.presentation import suite_page
from compo_pipeline.presentation.item_cards import ItemCard
from compo_pipeline.run.compute import choose_device, environment
from compo_pipeline.run.provenance import Site
from compo_pipeline.storage.files import FolderWriter
from compo_pipeline.storage.records import Caption, Score
from compo_pipeline.tracking import runs as tracking


def hash_training_rows(
    suite: SuiteSettings, data: DataSettings, evaluation: EvaluationSettings
) -> TrainingRows:
    """Hashes of the training rows of `suite.training`, to find them among benchmark items."""
    captions, facts = read_training_tables(suite.training)
    return training_rows(captions, facts, Path(suite.training.root or data.root), evaluation)


def slice_by_training(
    items: Sequence[Subtask],
    captions: Sequence[Caption],
    evaluation: EvaluationSettings,
    language_model: str,
) -> BenchmarkItems:
    """Benchmark items in slices by whether training captions have their attribute-object pairs."""
    kinds: set[SliceKind] = {"binding"} if captions and "binding" in evaluation.slices else set()
    return BenchmarkItems.with_slices(items, kinds, captions, partial(parses_of, language_model))


def score_list(
    items: BenchmarkItems,
    known: TrainingRows,
    models: Mapping[str, Callable[[], LoadedModel]],
    evaluation: EvaluationSettings,
    benchmarks: BenchmarksSettings,
    embeddings: str,
) -> tuple[Sequence[Score], dict[str, Any]]:
    """Score the listed models on every item, and compare them with the first model."""
    scores, suite = score_suite(items, models, evaluation, benchmarks, Path(embeddings), known)
    place = environment(choose_device(evaluation.device, key="evaluation.device"))
    return scores, replace(suite, environment=place).to_json()


def choose_suite_cards(
    suite: Mapping[str, Any],
    suite_scores: Sequence[Score],
    items: Sequence[Subtask],
    evaluation: EvaluationSettings,
) -> dict[str, list[ItemCard]]:
    """Random sample of items that each model fixes, breaks or still gets wrong."""
    return suite_page.cards_of(Suite.from_json(suite), suite_scores, items, evaluation.gallery)


def write_suite_page(
    suite: Mapping[str, Any],
    cards: Mapping[str, Sequence[ItemCard]],
    models: str,
    benchmarks: BenchmarksSettings,
    site: Site,
) -> FolderWriter:
    """Return a function that writes the page of a list of models; prints headline metrics."""
    found = Suite.from_json(suite)
    facts = {
        **site.facts("benchmark"),
        "list": models,
        "benchmarks": str(benchmarks.root or "folders of their own"),
        "precision": found.precision,
        "ties": found.ties,
        "EXIF orientation": "applied" if found.exif else "ignored",
        "environment": found.environment,
        "training rows": "counted among the items"
        if found.comparison.overlaps
        else "none (suite.training)",
    }
    suite_page.show(found)
    title = f"Models of the list {models}"
    return partial(suite_page.write, found, title, facts, cards=cards)


def log_suite(suite: Mapping[str, Any], page: Path, models: str) -> None:
    """Log the metrics and the page of a list of models as an MLflow run."""
    figures = by_model(Suite.from_json(suite).comparison.rows)
    tracking.log_figures(f"benchmark-{models}", {"models": models}, figures, page)
