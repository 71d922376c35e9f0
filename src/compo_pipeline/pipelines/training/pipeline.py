"""Wiring of the pipeline `training`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.training.nodes import (
    build_method,
    choose_ratio_items,
    log_training,
    log_views_preview,
    open_run,
    train_models,
)


def create_pipeline() -> Pipeline:
    """Kedro pipeline that trains the method and its control, from views to checkpoints."""
    return Pipeline(
        [
            node(
                build_method,
                inputs=["params:method", "params:method_settings"],
                outputs="trained_method",
                name="build_method",
            ),
            node(
                open_run,
                inputs=[
                    "training_inputs",
                    "trained_method",
                    "counterfactuals_report",
                    "params:evaluation.control",
                    "params:dataset",
                    "params:variant",
                ],
                outputs="run",
                name="open_run",
            ),
            node(
                choose_ratio_items,
                inputs=[
                    "valid_captions",
                    "foils",
                    "params:tuning.benchmarks",
                    "params:benchmarks",
                    "params:data.root",
                    "params:training",
                ],
                outputs="ratio_items",
                name="choose_ratio_items",
            ),
            node(
                train_models,
                inputs=["training_inputs", "trained_method", "run", "ratio_items"],
                outputs=["checkpoint", "control_checkpoint", "training_progress"],
                name="train_models",
            ),
            node(
                log_training,
                inputs=["run", "trained_method", "training_progress"],
                outputs="training_curves",
                name="log_training",
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
