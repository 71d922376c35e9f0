"""Wiring of the pipeline `training_inputs`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.training_inputs.nodes import choose_held_out, training_inputs


def create_pipeline() -> Pipeline:
    """Tables, folders and settings to the inputs of a training, in memory."""
    return Pipeline(
        [
            node(
                choose_held_out,
                inputs=[
                    "valid_captions",
                    "params:training",
                    "params:benchmarks",
                    "params:views.split",
                    "params:data.root",
                ],
                outputs="held_out",
                name="choose_held_out",
            ),
            node(
                training_inputs,
                inputs=[
                    "valid_captions",
                    "manifest",
                    "views",
                    "counterfactual_images",
                    "params:model",
                    "params:training",
                    "held_out",
                    "params:views.split",
                    "params:data.root",
                    "params:seed",
                    "params:paths.resume",
                    "params:paths.features",
                    "params:prepare",
                ],
                outputs="training_inputs",
                name="training_inputs",
            ),
        ],
        namespace="training",
        prefix_datasets_with_namespace=False,
    )
