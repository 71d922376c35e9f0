"""Export the checkpoint and register it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def export_checkpoint(
    checkpoint: Path,
    run: Mapping[str, Any],
    manifest: Mapping[str, Any],
    comparison: Mapping[str, Any],
    registration: Mapping[str, Any],
    folder: str,
) -> Path:
    """Write the checkpoint as a folder that open_clip alone loads, with its model card."""
    from compo_pipeline.configuration import parse
    from compo_pipeline.evaluation.evaluate import Comparison
    from compo_pipeline.registry import model_card
    from compo_pipeline.registry.registration import RegistrationSettings, export_for

    settings = parse(RegistrationSettings, registration, "registration")
    found = Comparison.from_json(comparison)
    export = export_for(checkpoint, Path(folder), {**run, "dataset": found.dataset}, settings)
    model_card.write(export, settings.name, manifest, found, run["run_id"], settings.licence)
    return export


def register_export(
    export: Path,
    run: Mapping[str, Any],
    manifest: Mapping[str, Any],
    comparison: Mapping[str, Any],
    registration: Mapping[str, Any],
    root: str,
) -> dict[str, Any]:
    """Log the export to the run, and register it unless this very checkpoint is a version."""
    from dataclasses import asdict

    from compo_pipeline.configuration import parse
    from compo_pipeline.evaluation.evaluate import Comparison
    from compo_pipeline.registry import tracking
    from compo_pipeline.registry.registration import RegistrationSettings, register

    settings = parse(RegistrationSettings, registration, "registration")
    found = Comparison.from_json(comparison)
    with tracking.adopt(run["run_id"]) as record:
        return asdict(register(export, record, manifest, found, root, settings))
