"""Nodes of the pipeline `registration`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from compo_pipeline.compute import choose_device
from compo_pipeline.evaluation.evaluate import Comparison
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.models.loading import load
from compo_pipeline.records import Caption, Score, ScoredItem
from compo_pipeline.registry import tracking
from compo_pipeline.registry.evidence import MODELS, Evidence, write_evidence
from compo_pipeline.registry.reference import write_reference
from compo_pipeline.registry.registration import export_with_card, register
from compo_pipeline.registry.settings import RegistrationSettings
from compo_pipeline.tables.rows import Table


def export_checkpoint(
    checkpoint: Path,
    run: Mapping[str, Any],
    manifest: Mapping[str, Any],
    comparison: Mapping[str, Any],
    scores: Sequence[Score],
    scored_items: Sequence[ScoredItem],
    valid_captions: Sequence[Caption],
    registration: RegistrationSettings,
    evaluation: EvaluationSettings,
    root: Path,
    folder: str,
) -> Path:
    """Write the checkpoint as a folder that open_clip can load, with its model card and evidence.

    The evidence's reference is of the exported weights.
    """
    compared = Comparison.from_json(comparison)
    export = export_with_card(checkpoint, Path(folder), run, manifest, compared, registration)
    table = Table.of(scores, Score)
    by_role = {role: table.having("model", [compared.models[role].name]) for role in MODELS}
    write_evidence(export, Evidence.of(compared), by_role, scored_items)
    exported = load(export).to(choose_device(evaluation.device, key="evaluation.device"))
    rows = registration.reference_rows
    write_reference(export, exported, valid_captions, Path(root), rows, evaluation)
    return export


def register_export(
    export: Path,
    run: Mapping[str, Any],
    manifest: Mapping[str, Any],
    comparison: Mapping[str, Any],
    registration: RegistrationSettings,
    root: Path,
) -> dict[str, Any]:
    """Log the export to the run, and register it unless a version of this checkpoint exists."""
    compared = Comparison.from_json(comparison)
    with tracking.adopt(run["run_id"]) as log:
        return asdict(register(export, log, manifest, compared, str(root), registration))
