"""The training pipeline."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.training.nodes import (
    collect_inputs,
    log_views_preview,
    train_model,
)


def create_pipeline() -> Pipeline:
    """Views to the checkpoints of the method and its control."""
    return Pipeline(
        [
            node(
                collect_inputs,
                inputs={
                    "valid_captions": "valid_captions",
                    "manifest": "manifest",
                    "views": "views",
                    "counterfactual_images": "counterfactual_images",
                    "model": "params:model",
                    "training": "params:training",
                    "benchmarks": "params:benchmarks",
                    "split": "params:views.split",
                    "root": "params:data.root",
                    "seed": "params:seed",
                    "resume": "params:paths.resume",
                },
                outputs="training_inputs",
                name="collect_inputs",
            ),
            node(
                train_model,
                inputs={
                    "training_inputs": "training_inputs",
                    "method": "params:method",
                    "method_settings": "params:method_settings",
                    "control": "params:evaluation.control",
                    "model": "params:model",
                    "training": "params:training",
                    "counterfactuals_report": "counterfactuals_report",
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
