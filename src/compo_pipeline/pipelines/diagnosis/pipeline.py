"""Wiring of the pipeline `diagnosis`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.diagnosis.nodes import diagnose_models, write_diagnoses


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
                ],
                outputs="diagnoses",
                name="diagnose_models",
            ),
            node(
                write_diagnoses,
                inputs=["diagnoses", "params:models", "params:model_lists", "params:site"],
                outputs="diagnosis_report",
                name="write_diagnoses",
            ),
        ]
    )
