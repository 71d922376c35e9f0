"""The training pipeline."""

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
                    "valid_captions": "valid_captions",
                    "manifest": "manifest",
                    "views": "views",
                    "counterfactual_images": "counterfactual_images",
                    "counterfactuals_report": "counterfactuals_report",
                    "model": "params:model",
                    "training": "params:training",
                    "benchmarks": "params:benchmarks",
                    "method": "params:method",
                    "method_settings": "params:method_settings",
                    "control": "params:evaluation.control",
                    "split": "params:views.split",
                    "root": "params:data.root",
                    "seed": "params:seed",
                    "dataset": "params:dataset",
                    "variant": "params:variant",
                    "paths": "params:paths",
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
