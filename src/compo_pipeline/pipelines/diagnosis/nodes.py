"""Nodes of the pipeline `diagnosis`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from compo_pipeline.benchmarks.loading import gather_foils
from compo_pipeline.benchmarks.settings import BenchmarksSettings
from compo_pipeline.core.provenance import Site
from compo_pipeline.core.records import Foil
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.evaluation.diagnosis.diagnose import TrainingRun, diagnose
from compo_pipeline.evaluation.settings import EvaluationSettings, ListedModel
from compo_pipeline.evaluation.suite import listed_models, score_suite
from compo_pipeline.generation.foils.build import shortage
from compo_pipeline.generation.foils.settings import FoilSettings
from compo_pipeline.pages.report import DIAGNOSIS, diagnosis_page
from compo_pipeline.pages.tables import show
from compo_pipeline.registry.settings import RegistrationSettings
from compo_pipeline.registry.verification import open_models


def diagnose_models(
    foils: Sequence[Foil],
    foils_report: Mapping[str, Any],
    training_run: TrainingRun,
    models: str,
    model_lists: Mapping[str, Mapping[str, ListedModel]],
    registration: RegistrationSettings,
    foil_settings: FoilSettings,
    benchmarks: BenchmarksSettings,
    evaluation: EvaluationSettings,
    root: Path,
    embeddings: str,
    site: Site,
) -> tuple[dict[str, Any], dict[str, str | bytes]]:
    """Diagnosis of each listed model: foil kinds it misses against the first, and advice.

    The foils are those of `benchmarks.foils.split`. The advice is what a training with these
    options should change.

    Returns:
        The diagnoses as JSON values, and a page of them with the settings that are advised.

    Raises:
        SettingsError: no kind of foils is used.
    """
    subtasks = gather_foils(benchmarks, foils, root)
    if not subtasks:
        split = benchmarks.foils.split
        why = "it names no set" if split is None else shortage(foils_report, split, foil_settings)
        raise SettingsError(f"benchmarks.foils.split: no foils are used: {why}")
    listed = listed_models(models, model_lists)
    opened = open_models(listed, evaluation.device, registration.signing, Path(embeddings))
    _, suite = score_suite(subtasks, opened, evaluation, benchmarks, Path(embeddings))
    found = {name: diagnose(suite, training_run, model=name) for name in suite.models}
    settings = {name: asdict(each) for name, each in listed.items()}
    facts = {**site.facts("diagnosis"), "list": models}
    page = diagnosis_page(found, settings, facts, site.command)
    show(page)
    return {name: asdict(one) for name, one in found.items()}, page.files(DIAGNOSIS)
