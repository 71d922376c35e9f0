"""Wiring of the pipeline `evaluation`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.evaluation.nodes import score_models, write_report


def create_pipeline() -> Pipeline:
    """The evaluation pipeline."""
    return Pipeline(
        [
            node(
                score_models,
                inputs=[
                    "valid_captions",
                    "facts",
                    "checkpoint",
                    "control_checkpoint",
                    "run",
                    "params:evaluation",
                    "params:benchmarks",
                    "params:model",
                    "params:method",
                    "params:dataset",
                    "params:data.root",
                    "params:language.model",
                ],
                outputs=["scores", "scored_items", "metrics", "comparison"],
                name="score_models",
            ),
            node(
                write_report,
                inputs=[
                    "comparison",
                    "scores",
                    "quarantine",
                    "training_curves",
                    "run",
                    "checkpoint",
                    "params:evaluation",
                    "params:benchmarks",
                    "params:command",
                    "params:paths",
                    "params:model",
                    "params:language.model",
                ],
                outputs="report",
                name="write_report",
            ),
        ],
        namespace="evaluation",
        prefix_datasets_with_namespace=False,
    )
