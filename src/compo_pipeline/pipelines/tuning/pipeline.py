"""Wiring of the pipeline `tuning`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.tuning.nodes import (
    build_confirmation,
    build_objective,
    choose_context,
    choose_items,
    collect_inputs,
    confirm_best,
    gather_items,
    log_study,
    name_tuned_run,
    open_record,
    read_space,
    run_study,
    write_study,
)


def create_pipeline() -> Pipeline:
    """Search a method's settings, and confirm the best values."""
    return Pipeline(
        [
            node(
                collect_inputs,
                inputs=[
                    "training_inputs",
                    "params:method",
                    "params:method_settings",
                    "params:evaluation",
                ],
                outputs="trial_inputs",
                name="collect_inputs",
            ),
            node(
                read_space,
                inputs=["trial_inputs", "params:spaces"],
                outputs="search_space",
                name="read_space",
            ),
            node(
                choose_items,
                inputs=[
                    "trial_inputs",
                    "valid_captions",
                    "foils",
                    "params:tuning",
                    "params:benchmarks",
                ],
                outputs="study_items",
                name="choose_items",
            ),
            node(
                name_tuned_run,
                inputs=["params:command", "params:method", "params:variant"],
                outputs="tuned_run",
                name="name_tuned_run",
            ),
            node(
                open_record,
                inputs=[
                    "training_inputs",
                    "params:method",
                    "params:dataset",
                    "params:variant",
                ],
                outputs="tuning_record",
                name="open_record",
            ),
            node(
                build_objective,
                inputs=[
                    "trial_inputs",
                    "search_space",
                    "study_items",
                    "tuning_record",
                    "params:tuning",
                    "params:paths",
                ],
                outputs="trial_objective",
                name="build_objective",
            ),
            node(
                run_study,
                inputs=[
                    "trial_objective",
                    "trial_inputs",
                    "params:tuning",
                    "tuned_run",
                    "params:paths",
                ],
                outputs="study",
                name="run_study",
            ),
            node(
                choose_context,
                inputs=[
                    "trial_inputs",
                    "parses",
                    "counterfactuals",
                    "annotations",
                    "params:views",
                    "params:language.model",
                ],
                outputs="confirmation_context",
                name="choose_context",
            ),
            node(
                gather_items,
                inputs=["trial_inputs", "valid_captions", "foils", "params:benchmarks"],
                outputs="reported_items",
                name="gather_items",
            ),
            node(
                build_confirmation,
                inputs=[
                    "trial_inputs",
                    "confirmation_context",
                    "reported_items",
                    "params:views",
                    "params:paths",
                    "params:data",
                ],
                outputs="confirmation",
                name="build_confirmation",
            ),
            node(
                confirm_best,
                inputs=["study", "confirmation", "params:tuning", "params:dataset"],
                outputs="tuning_confirmation",
                name="confirm_best",
            ),
            node(
                write_study,
                inputs=[
                    "study",
                    "tuning_confirmation",
                    "search_space",
                    "params:tuning",
                    "tuned_run",
                    "params:paths",
                ],
                outputs="tuning_report",
                name="write_study",
            ),
            node(
                log_study,
                inputs=["study", "tuning_report", "params:tuning", "params:paths"],
                outputs=None,
                name="log_study",
            ),
        ]
    )
