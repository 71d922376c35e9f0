"""Views, validation items and a search space -> study -> confirmed best values -> page."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.tuning.nodes import confirm_best, search_space, show_study
from compo_pipeline.training.inputs import NODE_INPUTS

_TRIALS = {
    **NODE_INPUTS,
    "method": "params:method",
    "method_settings": "params:method_settings",
    "evaluation": "params:evaluation",
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
                    "tuning": "params:tuning",
                    **_SPACE,
                    "dataset": "params:dataset",
                    "variant": "params:variant",
                },
                outputs="study",
                name="search_space",
            ),
            node(
                confirm_best,
                inputs={
                    **_TRIALS,
                    "tuning": "params:tuning",
                    "study": "study",
                    "parses": "parses",
                    "counterfactuals": "counterfactuals",
                    "views_settings": "params:views",
                    "language_model": "params:language.model",
                    "dataset": "params:dataset",
                },
                outputs="tuning_confirmation",
                name="confirm_best",
            ),
            node(
                show_study,
                inputs={
                    "tuning": "params:tuning",
                    **_SPACE,
                    "paths": "params:paths",
                    "training": "params:training",
                    "method": "params:method",
                    "method_settings": "params:method_settings",
                    "study": "study",
                    "confirmation": "tuning_confirmation",
                },
                outputs="tuning_report",
                name="show_study",
            ),
        ]
    )
