"""Wiring of the pipeline `training`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.training import nodes


def create_pipeline() -> Pipeline:
    """Train the method, and the control that it is compared with."""
    return Pipeline(
        [
            node(
                nodes.prepare_training,
                inputs=[
                    "valid_captions",
                    "foils",
                    "manifest",
                    "views",
                    "counterfactual_images",
                    "params:model",
                    "params:training",
                    "params:views.split",
                    "params:seed",
                    "params:data.root",
                    "params:benchmarks",
                    "params:paths",
                ],
                outputs="training_inputs",
                name="prepare_training",
            ),
            node(
                nodes.open_run,
                inputs=[
                    "training_inputs",
                    "counterfactuals_report",
                    "params:method",
                    "params:method_settings",
                    "params:evaluation.control",
                    "params:dataset",
                    "params:variant",
                ],
                outputs="run",
                name="open_run",
            ),
            node(
                nodes.train_models,
                inputs=[
                    "training_inputs",
                    "run",
                    "valid_captions",
                    "foils",
                    "params:method",
                    "params:method_settings",
                    "params:tuning.benchmarks",
                    "params:benchmarks",
                ],
                outputs=["checkpoint", "control_checkpoint", "training_progress"],
                name="train_models",
            ),
            node(
                nodes.log_training,
                inputs=["run", "training_progress", "views_preview"],
                outputs="training_curves",
                name="log_training",
            ),
        ],
        namespace="training",
        prefix_datasets_with_namespace=False,
    )
