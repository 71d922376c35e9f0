"""Wiring of the pipeline `training`."""

from __future__ import annotations

from kedro.pipeline import Pipeline

from compo_pipeline.pipelines import step
from compo_pipeline.pipelines.training import nodes


def create_pipeline() -> Pipeline:
    """Train the method, and the control that it is compared with."""
    return Pipeline(
        [
            step(
                nodes.prepare_training,
                ["valid_captions", "foils", "manifest", "views", "counterfactual_images"],
                "training_inputs",
                selecting="tuning.benchmarks",
            ),
            step(
                nodes.open_run,
                ["training_inputs", "counterfactuals_report"],
                "run",
                control="evaluation.control",
            ),
            step(
                nodes.train_models,
                ["training_inputs", "run", "valid_captions", "foils"],
                ["checkpoint", "control_checkpoint", "training_progress"],
                selecting="tuning.benchmarks",
            ),
            step(
                nodes.log_training, ["run", "training_progress", "views_preview"], "training_curves"
            ),
        ],
        namespace="training",
        prefix_datasets_with_namespace=False,
    )
