"""Wiring of the pipeline `diagnosis`."""

from __future__ import annotations

from kedro.pipeline import Pipeline

from compo_pipeline.pipelines import step
from compo_pipeline.pipelines.diagnosis.nodes import diagnose_models


def create_pipeline() -> Pipeline:
    """Find the kinds of change that the models of a list miss, and advise a training."""
    return Pipeline(
        [
            step(
                diagnose_models,
                ["foils", "foils_report", "training_run"],
                ["diagnoses", "diagnosis_report"],
                foil_settings="foils",
                embeddings="paths.embeddings",
            ),
        ],
    )
