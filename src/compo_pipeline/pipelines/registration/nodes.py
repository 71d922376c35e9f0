"""Nodes of the pipeline `registration`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch

from compo_pipeline.benchmarks.items import Role
from compo_pipeline.benchmarks.settings import BenchmarksSettings
from compo_pipeline.configuration.settings import SettingsError
from compo_pipeline.counterfactuals.settings import CounterfactualSettings
from compo_pipeline.datasets.recaption.settings import RecaptionSettings
from compo_pipeline.datasets.settings import DataSettings
from compo_pipeline.evaluation.evaluate import Comparison
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.language.parsing import load_once
from compo_pipeline.methods.registry import find
from compo_pipeline.models.loading import load
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.run.compute import choose_device
from compo_pipeline.storage.files import FolderWriter
from compo_pipeline.storage.records import Caption, Score, ScoredItem
from compo_pipeline.storage.tables import Table
from compo_pipeline.tracking import runs as tracking
from compo_pipeline.tuning.selection import (
    describe_selecting,
    recorded_validation,
    selecting_benchmarks,
)
from compo_pipeline.versions.evidence import MODELS, Evidence, write_evidence
from compo_pipeline.versions.materials import (
    base_material,
    captioner_material,
    counterfactual_materials,
    data_materials,
    parser_material,
)
from compo_pipeline.versions.reference import write_reference
from compo_pipeline.versions.registration import MadeFrom, export_with_card, register
from compo_pipeline.versions.settings import RegistrationSettings


class MeasuredModel(NamedTuple):
    """Evaluation of a checkpoint: comparison, scores, items, benchmarks used for selection."""

    comparison: Comparison
    """With its base and its control."""
    scores: Mapping[str, Table[Score]]
    """By role."""
    items: Sequence[ScoredItem]
    """Shapes and slices of the scored items."""
    selecting: Mapping[str, str]
    """Scored benchmarks whose items select, and the YAML key by which they do."""


class ReferenceSource(NamedTuple):
    """Captions, images and settings of the reference sample that is stored with a version."""

    captions: Sequence[Caption]
    """Of all splits."""
    root: Path
    """Folder of their images."""
    evaluation: EvaluationSettings
    """Batches and precision."""
    device: torch.device
    """Where the model is."""


def collect_evidence(
    comparison: Mapping[str, Any],
    scores: Sequence[Score],
    items: Sequence[ScoredItem],
    checkpoint: Path,
    registration: RegistrationSettings,
    tuned: BenchmarksSettings,
) -> MeasuredModel:
    """Evaluation results by which promotion judges the version: scores, overlaps, items.

    Raises:
        SettingsError: the version would get an alias, and was scored on items that select.
    """
    compared, table = Comparison.from_json(comparison), Table.of(scores, Score)
    by_role = {role: table.having("model", [compared.models[role].name]) for role in MODELS}
    found = selecting_benchmarks(compared.sources, recorded_validation(checkpoint), tuned)
    if found and registration.alias is not None:
        lines = "\n".join(describe_selecting(compared.sources, found))
        raise SettingsError(f"{lines}\n`kedro run --pipeline=evaluation` scores others")
    return MeasuredModel(compared, by_role, items, found)


def list_base_and_data(
    model: ModelSettings,
    dataset: str,
    data: DataSettings,
    manifest: Mapping[str, Any],
    valid_captions: Sequence[Caption],
) -> MadeFrom:
    """Base model and datasets that a checkpoint was made from, for its lineage and licences."""
    listed = (base_material(model), *data_materials(dataset, data, manifest))
    return MadeFrom(manifest, valid_captions, listed)


def list_preparation(
    base_and_data: MadeFrom,
    method: str,
    language_model: str,
    recaption: RecaptionSettings,
    counterfactuals: CounterfactualSettings,
) -> MadeFrom:
    """Add the models that prepared the training data (captioner, parser, ...) to the lineage."""
    made = [*captioner_material(recaption), parser_material(load_once(language_model).meta)]
    if find(method).counterfactuals:
        made += counterfactual_materials(counterfactuals)
    return base_and_data._replace(materials=(*base_and_data.materials, *made))


def export_checkpoint(
    checkpoint: Path,
    run: Mapping[str, Any],
    made_from: MadeFrom,
    measured: MeasuredModel,
    reference: ReferenceSource,
    registration: RegistrationSettings,
    waive: tuple[Role, ...],
) -> FolderWriter:
    """Return a function that writes the checkpoint as an open_clip folder, with card and evidence.

    The evidence's reference is of the exported weights.
    """

    def write(folder: Path) -> None:
        compared = measured.comparison
        export_with_card(checkpoint, folder, run, made_from, compared, registration, waive)
        evidence = Evidence.from_comparison(compared, measured.selecting)
        write_evidence(folder, evidence, measured.scores, measured.items)
        exported, rows = load(folder).to(reference.device), registration.reference_rows
        write_reference(
            folder, exported, reference.captions, reference.root, rows, reference.evaluation
        )

    return write


def choose_reference(
    valid_captions: Sequence[Caption], root: Path, evaluation: EvaluationSettings
) -> ReferenceSource:
    """Captions, images and settings for the reference sample stored with the version."""
    device = choose_device(evaluation.device, key="evaluation.device")
    return ReferenceSource(valid_captions, Path(root), evaluation, device)


def register_export(
    export: Path,
    run: Mapping[str, Any],
    manifest: Mapping[str, Any],
    comparison: Mapping[str, Any],
    registration: RegistrationSettings,
    root: Path,
) -> dict[str, Any]:
    """Log the exported model to its MLflow run and register it, unless it is registered."""
    compared = Comparison.from_json(comparison)
    with tracking.adopt(run["run_id"]) as log:
        return asdict(register(export, log, manifest, compared, str(root), registration))
