"""Wiring of the pipeline `diagnosis`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.diagnosis.nodes import diagnose_models


def create_pipeline() -> Pipeline:
    """Find the kinds of change that the models of a list miss, and advise a training."""
    return Pipeline(
        [
            node(
                diagnose_models,
                inputs=[
                    "foils",
                    "foils_report",
                    "training_run",
                    "params:models",
                    "params:model_lists",
                    "params:registration",
                    "params:foils",
                    "params:benchmarks",
                    "params:evaluation",
                    "params:data.root",
                    "params:paths.embeddings",
                    "params:site",
                ],
                outputs=["diagnoses", "diagnosis_report"],
                name="diagnose_models",
            ),
        ]
    )
