"""Pipeline `registration`: the checkpoint becomes an open_clip folder and a version in MLflow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kedro.pipeline import Pipeline, node

from compo_pipeline.configuration import parse
from compo_pipeline.registry.settings import RegistrationSettings


def export_checkpoint(
    checkpoint: Path,
    run: Mapping[str, Any],
    manifest: Mapping[str, Any],
    comparison: Mapping[str, Any],
    registration: Mapping[str, Any],
    folder: str,
) -> Path:
    """Write the checkpoint as a folder that open_clip can load, with its model card."""
    from compo_pipeline.evaluation.evaluate import Comparison
    from compo_pipeline.registry.registration import export_with_card

    settings = parse(RegistrationSettings, registration, "registration")
    compared = Comparison.from_json(comparison)
    return export_with_card(checkpoint, Path(folder), run, manifest, compared, settings)


def register_export(
    export: Path,
    run: Mapping[str, Any],
    manifest: Mapping[str, Any],
    comparison: Mapping[str, Any],
    registration: Mapping[str, Any],
    root: str,
) -> dict[str, Any]:
    """Log the export to the run, and register it unless a version of this checkpoint exists."""
    from compo_pipeline.evaluation.evaluate import Comparison
    from compo_pipeline.registry import tracking
    from compo_pipeline.registry.registration import register

    settings = parse(RegistrationSettings, registration, "registration")
    compared = Comparison.from_json(comparison)
    with tracking.adopt(run["run_id"]) as log:
        return asdict(register(export, log, manifest, compared, root, settings))


def create_pipeline() -> Pipeline:
    """The registration pipeline."""
    return Pipeline(
        [
            node(
                export_checkpoint,
                inputs=[
                    "checkpoint",
                    "run",
                    "manifest",
                    "comparison",
                    "params:registration",
                    "params:paths.export",
                ],
                outputs="export",
                name="export_checkpoint",
            ),
            node(
                register_export,
                inputs=[
                    "export",
                    "run",
                    "manifest",
                    "comparison",
                    "params:registration",
                    "params:data.root",
                ],
                outputs="registered",
                name="register_export",
            ),
        ]
    )
