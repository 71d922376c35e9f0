"""Wiring of the pipeline `diagnosis`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.diagnosis.nodes import (
    diagnose_models,
    score_foils,
    write_diagnoses,
)


def create_pipeline() -> Pipeline:
    """Kedro pipeline that diagnoses which kinds of foils the listed models miss."""
    return Pipeline(
        [
            node(
                score_foils,
                inputs=[
                    "foils",
                    "foils_report",
                    "params:foils",
                    "listed_models",
                    "params:benchmarks",
                    "params:evaluation",
                    "params:data.root",
                    "params:paths.embeddings",
                ],
                outputs="scored_foils",
                name="score_foils",
            ),
            node(
                diagnose_models,
                inputs=["scored_foils", "training_run", "rule_settings"],
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
