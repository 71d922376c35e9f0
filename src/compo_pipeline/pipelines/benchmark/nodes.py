"""Nodes of the pipeline `benchmark`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from compo_pipeline.compute import choose_device, environment
from compo_pipeline.configuration import SettingsError
from compo_pipeline.datasets.settings import DataSettings
from compo_pipeline.evaluation.benchmarks.loading import from_files
from compo_pipeline.evaluation.comparison import by_model
from compo_pipeline.evaluation.contamination import named_rows, training_rows
from compo_pipeline.evaluation.references import read_references
from compo_pipeline.evaluation.settings import BenchmarksSettings, EvaluationSettings, SuiteSettings
from compo_pipeline.evaluation.slices import item_slices
from compo_pipeline.evaluation.suite import Suite, listed_models, score_suite
from compo_pipeline.language.parsing import parses_of
from compo_pipeline.presentation import suite_page
from compo_pipeline.presentation.item_attention import item_attention
from compo_pipeline.provenance import page_facts
from compo_pipeline.records import Score
from compo_pipeline.registry import tracking
from compo_pipeline.registry.settings import RegistrationSettings
from compo_pipeline.registry.verification import load_model
from compo_pipeline.scenes.dataset import SceneSettings, write


def score_list(
    models: str,
    model_lists: Mapping[str, Any],
    benchmarks: BenchmarksSettings,
    evaluation: EvaluationSettings,
    data: DataSettings,
    scenes: SceneSettings,
    registration: RegistrationSettings,
    suite: SuiteSettings,
    embeddings: str,
    language_model: str,
) -> tuple[Sequence[Score], dict[str, Any]]:
    """Scores of every item, and the comparison of the models with the first one."""
    chosen = listed_models(models, model_lists)
    references, unmatched = read_references(suite.references)
    captions, facts = named_rows(suite.training)
    root = Path(suite.training.root or data.root)
    known = training_rows(captions, facts, root, evaluation) if captions else None
    _render_benchmarks(data, scenes, benchmarks.root)
    subtasks = from_files(benchmarks)
    if not subtasks:
        raise SettingsError("benchmarks: none is enabled; name one at benchmarks.sets")
    device = choose_device(evaluation.device, key="evaluation.device")
    loaders = {
        name: partial(load_model, each, device, registration.signing)
        for name, each in chosen.items()
    }
    slices = item_slices(
        subtasks,
        {kind for kind in evaluation.slices if known and kind == "binding"},
        partial(parses_of, language_model),
        (text for row in captions for text in row.sentences),
    )
    store = Path(embeddings)
    scores, found = score_suite(subtasks, loaders, evaluation, benchmarks, store, known, slices)
    found = replace(
        found, references=references, unmatched=unmatched, environment=environment(device)
    )
    return scores, found.to_json()


def _render_benchmarks(data: DataSettings, scenes: SceneSettings, root: str | None) -> None:
    """Render the scenes whose benchmarks are asked for; nothing is done for other data."""
    if data.rendered and root is not None and data.root in Path(root).parents:
        write(scenes, data.root)


def write_suite_page(
    suite: Mapping[str, Any],
    suite_scores: Sequence[Score],
    models: str,
    benchmarks: BenchmarksSettings,
    evaluation: EvaluationSettings,
    command: Mapping[str, Any],
    folder: str,
    model_lists: Mapping[str, Any],
    registration: RegistrationSettings,
    language_model: str,
) -> Path:
    """Write the page of a list of models, and print its headline metrics."""
    found = Suite.from_json(suite)
    facts = {
        **page_facts(command, "benchmark"),
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
    subtasks = from_files(benchmarks)
    cards = suite_page.cards_of(found, suite_scores, subtasks, evaluation.gallery)
    attention = {}
    if evaluation.attention and cards:
        device = choose_device(evaluation.device, key="evaluation.device")
        signing = registration.signing
        listed = listed_models(models, model_lists)
        baseline = found.names[0]
        first = load_model(listed[baseline], device, signing)
        parser = partial(parses_of, language_model)
        for name, own in cards.items():
            pair = first, load_model(listed[name], device, signing)
            attention[name] = item_attention(
                own, subtasks, pair, (baseline, name), parser, evaluation.attention
            )
    suite_page.show(found)
    title = f"Models of the list {models}"
    return suite_page.write(found, title, facts, Path(folder), cards, attention)


def log_suite(suite: Mapping[str, Any], page: Path, models: str) -> None:
    """Log figures and page of a list of models as an MLflow run."""
    figures = by_model(Suite.from_json(suite).comparison.rows)
    tracking.log_figures(f"benchmark-{models}", {"models": models}, figures, page)
