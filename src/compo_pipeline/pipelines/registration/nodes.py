"""Export the checkpoint and register it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def export_checkpoint(
    checkpoint: Path, registration: Mapping[str, Any], method: str, folder: str
) -> Path:
    """Write the checkpoint as a folder that open_clip alone loads."""
    from compo_pipeline.configuration import parse
    from compo_pipeline.registry.registration import RegistrationSettings, export_for

    settings = parse(RegistrationSettings, registration, "registration")
    return export_for(checkpoint, Path(folder), method, settings)


def register_export(
    export: Path,
    run: Mapping[str, Any],
    manifest: Mapping[str, Any],
    metrics: Mapping[str, Any],
    registration: Mapping[str, Any],
) -> dict[str, Any]:
    """Log the export to the run, and register it unless this very checkpoint is a version."""
    from dataclasses import asdict

    from compo_pipeline.configuration import parse
    from compo_pipeline.registry import tracking
    from compo_pipeline.registry.registration import RegistrationSettings, register

    settings = parse(RegistrationSettings, registration, "registration")
    with tracking.adopt(run["run_id"]) as record:
        return asdict(register(export, record, manifest, metrics, settings))
