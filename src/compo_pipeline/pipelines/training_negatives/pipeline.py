"""Wiring of the part `training_negatives`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.training_negatives.nodes import (
    choose_opening,
    choose_sample,
    describe_training,
    list_rule_settings,
)


def create_pipeline() -> Pipeline:
    """Kedro pipeline part that describes a training's negatives, for the diagnosis."""
    return Pipeline(
        [
            node(
                describe_training,
                inputs=[
                    "views",
                    "params:language.model",
                    "params:method",
                    "params:method_settings",
                    "params:views.from_table",
                    "params:training",
                    "params:data",
                ],
                outputs="training_run",
                name="describe_training",
            ),
            node(
                choose_sample,
                inputs=["valid_captions", "params:views.split", "params:language.model"],
                outputs="caption_sample",
                name="choose_sample",
            ),
            node(
                choose_opening,
                inputs=[
                    "caption_sample",
                    "params:counterfactuals",
                    "params:data.root",
                    "params:paths.counterfactuals_state",
                    "params:generator_settings",
                ],
                outputs="sample_opening",
                name="choose_opening",
            ),
            node(
                list_rule_settings,
                inputs=[
                    "caption_sample",
                    "sample_opening",
                    "params:counterfactuals",
                    "params:method",
                    "params:method_settings.views",
                ],
                outputs="rule_settings",
                name="list_rule_settings",
            ),
        ],
        namespace="evaluation",
        prefix_datasets_with_namespace=False,
    )
