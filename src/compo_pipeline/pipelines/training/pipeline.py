"""The training pipeline."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.training.nodes import log_views_preview, train_model
from compo_pipeline.training.inputs import NODE_INPUTS


def create_pipeline() -> Pipeline:
    """Views to the checkpoints of the method and its control."""
    return Pipeline(
        [
            node(
                train_model,
                inputs={
                    **NODE_INPUTS,
                    "counterfactuals_report": "counterfactuals_report",
                    "method": "params:method",
                    "method_settings": "params:method_settings",
                    "control": "params:evaluation.control",
                    "dataset": "params:dataset",
                    "variant": "params:variant",
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
        ]
    )
