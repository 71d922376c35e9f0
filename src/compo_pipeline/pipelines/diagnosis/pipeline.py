"""Wiring of the pipeline `diagnosis`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.diagnosis.nodes import (
    choose_opening,
    choose_sample,
    count_negatives,
    diagnose,
    list_rule_settings,
    write_diagnosis,
)


def create_pipeline() -> Pipeline:
    """The diagnosis pipeline."""
    return Pipeline(
        [
            node(
                count_negatives,
                inputs=["views", "params:language.model"],
                outputs="asked_changes",
                name="count_negatives",
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
            node(
                diagnose,
                inputs=[
                    "comparison",
                    "asked_changes",
                    "rule_settings",
                    "params:method",
                    "params:training.epochs",
                ],
                outputs="diagnosis",
                name="diagnose",
            ),
            node(
                write_diagnosis,
                inputs=["diagnosis", "run", "params:site"],
                outputs="diagnosis_report",
                name="write_diagnosis",
            ),
        ]
    )
