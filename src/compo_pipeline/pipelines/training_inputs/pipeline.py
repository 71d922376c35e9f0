"""Wiring of the pipeline `training_inputs`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.training_inputs.nodes import (
    choose_held_out,
    choose_recipe,
    collect_inputs,
    gather_data,
)


def create_pipeline() -> Pipeline:
    """Kedro pipeline part that collects the inputs of a training, in memory."""
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
                    "foils",
                ],
                outputs="held_out",
                name="choose_held_out",
            ),
            node(
                gather_data,
                inputs=[
                    "valid_captions",
                    "params:views.split",
                    "manifest",
                    "views",
                    "counterfactual_images",
                    "params:data.root",
                ],
                outputs="training_data",
                name="gather_data",
            ),
            node(
                choose_recipe,
                inputs=["params:model", "params:training", "params:seed"],
                outputs="training_recipe",
                name="choose_recipe",
            ),
            node(
                collect_inputs,
                inputs=["training_data", "training_recipe", "held_out", "params:paths"],
                outputs="training_inputs",
                name="collect_inputs",
            ),
        ],
        namespace="training",
        prefix_datasets_with_namespace=False,
    )
