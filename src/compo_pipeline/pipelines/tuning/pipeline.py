"""Views, validation items and a search space -> study -> confirmed best values -> page."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.tuning.nodes import confirm_best, search_space, show_study

_METHOD = {
    "training": "params:training",
    "method": "params:method",
    "method_settings": "params:method_settings",
}
# Inputs of a training.
_TRAINING = {
    **_METHOD,
    "valid_captions": "valid_captions",
    "views": "views",
    "counterfactual_images": "counterfactual_images",
    "manifest": "manifest",
    "model": "params:model",
    "evaluation": "params:evaluation",
    "split": "params:views.split",
    "root": "params:data.root",
    "seed": "params:seed",
    "features": "params:paths.features",
}
_STUDY = {"tuning": "params:tuning", "paths": "params:paths"}
_SPACE = {"spaces": "params:spaces", "command": "params:command"}


def create_pipeline() -> Pipeline:
    """The tuning pipeline."""
    return Pipeline(
        [
            node(
                search_space,
                inputs={
                    **_TRAINING,
                    **_STUDY,
                    **_SPACE,
                    "benchmarks": "params:benchmarks",
                    "dataset": "params:dataset",
                    "variant": "params:variant",
                },
                outputs="study",
                name="search_space",
            ),
            node(
                confirm_best,
                inputs={
                    **_TRAINING,
                    **_STUDY,
                    "study": "study",
                    "parses": "parses",
                    "counterfactuals": "counterfactuals",
                    "benchmarks": "params:benchmarks",
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
                    **_METHOD,
                    **_STUDY,
                    **_SPACE,
                    "study": "study",
                    "confirmation": "tuning_confirmation",
                },
                outputs="tuning_report",
                name="show_study",
            ),
        ]
    )
