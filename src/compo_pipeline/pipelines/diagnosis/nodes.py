"""Nodes of the pipeline `diagnosis`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from compo_pipeline.benchmarks.loading import gather_foils
from compo_pipeline.benchmarks.settings import BenchmarksSettings
from compo_pipeline.configuration.settings import SettingsError
from compo_pipeline.diagnosis.advice import TrainingRun
from compo_pipeline.diagnosis.diagnose import Diagnosis, diagnose
from compo_pipeline.diagnosis.options import RuleSetting
from compo_pipeline.evaluation.contamination import TrainingRows
from compo_pipeline.evaluation.evaluate import BenchmarkItems
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.evaluation.suite import Suite, listed_models, score_suite
from compo_pipeline.foils.build import shortage
from compo_pipeline.foils.settings import FoilSettings
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.presentation import diagnosis_page as page
from compo_pipeline.run.provenance import Site
from compo_pipeline.storage.files import FolderWriter
from compo_pipeline.storage.records import Foil


def score_foils(
    foils: Sequence[Foil],
    foils_report: Mapping[str, Any],
    foil_settings: FoilSettings,
    models: Mapping[str, Callable[[], LoadedModel]],
    benchmarks: BenchmarksSettings,
    evaluation: EvaluationSettings,
    root: Path,
    embeddings: str,
) -> Suite:
    """Scores of the listed models on the foils of `benchmarks.foils.split`.

    Raises:
        SettingsError: no kind of them is used.
    """
    subtasks = gather_foils(benchmarks, foils, Path(root))
    if not subtasks:
        split = benchmarks.foils.split
        why = "it names no set" if split is None else shortage(foils_report, split, foil_settings)
        raise SettingsError(f"benchmarks.foils.split: no foils are used: {why}")
    items, store = BenchmarkItems(subtasks, {}), Path(embeddings)
    _, suite = score_suite(items, models, evaluation, benchmarks, store, TrainingRows())
    return suite


def diagnose_models(
    scored_foils: Suite,
    training_run: TrainingRun,
    rule_settings: Callable[[], Iterable[RuleSetting]],
) -> dict[str, Any]:
    """Diagnosis of each listed model: foil kinds it misses against the base, and advice.

    The advice is what a training with these options should change.
    """
    base, rows = scored_foils.comparison.reference, scored_foils.comparison.rows
    return {
        name: diagnose(rows, base, name, training_run, rule_settings).to_json()
        for name in scored_foils.names
    }


def write_diagnoses(
    diagnoses: Mapping[str, Any], models: str, model_lists: Mapping[str, Any], site: Site
) -> FolderWriter:
    """Return a function that writes the page and, per model, an environment of advised settings."""
    found = {name: Diagnosis.from_json(each) for name, each in diagnoses.items()}
    settings = {name: asdict(each) for name, each in listed_models(models, model_lists).items()}
    facts = {**site.facts("diagnosis"), "list": models}
    page.show(found)
    return partial(page.write, found, settings, facts, site.command)
