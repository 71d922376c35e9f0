"""Nodes of the pipeline `diagnosis`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from compo_pipeline.benchmarks.loading import gather_foils
from compo_pipeline.benchmarks.settings import BenchmarksSettings
from compo_pipeline.configuration.settings import SettingsError, parse
from compo_pipeline.diagnosis.advice import TrainingRun
from compo_pipeline.diagnosis.diagnose import Diagnosis, diagnose
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.evaluation.suite import listed_models, score_suite
from compo_pipeline.foils.build import shortage
from compo_pipeline.foils.settings import FoilSettings
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.presentation import diagnosis_page as page
from compo_pipeline.run.provenance import Site
from compo_pipeline.storage.records import Foil
from compo_pipeline.versions.settings import RegistrationSettings
from compo_pipeline.versions.verification import open_models


def diagnose_models(
    foils: Sequence[Foil],
    foils_report: Mapping[str, Any],
    training_run: TrainingRun,
    models: str,
    model_lists: Mapping[str, Mapping[str, ModelSettings]],
    registration: RegistrationSettings,
    foil_settings: FoilSettings,
    benchmarks: BenchmarksSettings,
    evaluation: EvaluationSettings,
    root: Path,
    embeddings: str,
) -> dict[str, Any]:
    """Diagnosis of each listed model: foil kinds it misses against the first, and advice.

    The foils are those of `benchmarks.foils.split`. The advice is what a training with these
    options should change.

    Raises:
        SettingsError: no kind of foils is used.
    """
    subtasks = gather_foils(benchmarks, foils, root)
    if not subtasks:
        split = benchmarks.foils.split
        why = "it names no set" if split is None else shortage(foils_report, split, foil_settings)
        raise SettingsError(f"benchmarks.foils.split: no foils are used: {why}")
    opened = open_models(
        listed_models(models, model_lists), evaluation.device, registration.signing
    )
    _, suite = score_suite(subtasks, opened, evaluation, benchmarks, Path(embeddings))
    base, rows = suite.reference, suite.rows
    return {name: asdict(diagnose(rows, base, name, training_run)) for name in suite.models}


def write_diagnoses(
    diagnoses: Mapping[str, Any],
    models: str,
    model_lists: Mapping[str, Mapping[str, ModelSettings]],
    site: Site,
) -> dict[str, str | bytes]:
    """Page of the diagnoses, with the settings that are advised for each model."""
    found = {name: parse(Diagnosis, each, "diagnoses") for name, each in diagnoses.items()}
    settings = {name: asdict(each) for name, each in listed_models(models, model_lists).items()}
    facts = {**site.facts("diagnosis"), "list": models}
    page.show(found)
    return page.files(found, settings, facts, site.command)
