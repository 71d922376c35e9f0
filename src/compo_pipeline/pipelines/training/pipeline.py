"""Wiring of the pipeline `training`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.training.nodes import log_views_preview, train_model


def create_pipeline() -> Pipeline:
    """Views to the checkpoints of the method and its control."""
    return Pipeline(
        [
            node(
                train_model,
                inputs={
                    "inputs": "training_inputs",
                    "counterfactuals_report": "counterfactuals_report",
                    "method": "params:method",
                    "method_settings": "params:method_settings",
                    "control": "params:evaluation.control",
                    "dataset": "params:dataset",
                    "variant": "params:variant",
                    "checkpoint": "params:paths.checkpoint",
                    "control_checkpoint": "params:paths.control_checkpoint",
                },
                outputs=["checkpoint", "control_checkpoint", "run", "training_curves"],
                name="train_model",
            ),
            node(
                log_views_preview,
                inputs=["views_preview", "run"],
                outputs=None,
                name="log_views_preview",
            ),
        ],
        namespace="training",
        prefix_datasets_with_namespace=False,
    )
