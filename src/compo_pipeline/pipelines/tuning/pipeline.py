"""Wiring of the pipeline `tuning`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.tuning.nodes import confirm_best, search_space, show_study

# Inputs of the nodes that train.
_TRIALS = {
    "training": "training_inputs",
    "valid_captions": "valid_captions",
    "tuning": "params:tuning",
    "method": "params:method",
    "method_settings": "params:method_settings",
    "evaluation": "params:evaluation",
    "benchmarks": "params:benchmarks",
    "dataset": "params:dataset",
}


_SPACE = {"spaces": "params:spaces", "command": "params:command"}


def create_pipeline() -> Pipeline:
    """The tuning pipeline."""
    return Pipeline(
        [
            node(
                search_space,
                inputs={
                    **_TRIALS,
                    **_SPACE,
                    "variant": "params:variant",
                    "trials_folder": "params:paths.tuning_trials",
                    "study_folder": "params:paths.tuning",
                },
                outputs="study",
                name="search_space",
            ),
            node(
                confirm_best,
                inputs={
                    **_TRIALS,
                    "study": "study",
                    "parses": "parses",
                    "counterfactuals": "counterfactuals",
                    "views": "params:views",
                    "language_model": "params:language.model",
                    "folder": "params:paths.tuning_confirmed",
                },
                outputs="tuning_confirmation",
                name="confirm_best",
            ),
            node(
                show_study,
                inputs={
                    "study": "study",
                    "confirmation": "tuning_confirmation",
                    "tuning": "params:tuning",
                    **_SPACE,
                    "training": "params:training",
                    "method": "params:method",
                    "method_settings": "params:method_settings",
                    "study_folder": "params:paths.tuning",
                    "report_folder": "params:paths.tuning_report",
                },
                outputs="tuning_report",
                name="show_study",
            ),
        ]
    )
