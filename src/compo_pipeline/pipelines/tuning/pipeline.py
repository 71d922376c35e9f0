"""Wiring of the pipeline `tuning`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.tuning import nodes


def create_pipeline() -> Pipeline:
    """Search a method's settings, and confirm the best values."""
    return Pipeline(
        [
            node(
                nodes.read_space,
                inputs=[
                    "training_inputs",
                    "params:method",
                    "params:method_settings",
                    "params:evaluation",
                    "params:spaces",
                ],
                outputs=["trial_inputs", "search_space"],
                name="read_space",
            ),
            node(
                nodes.run_study,
                inputs=[
                    "trial_inputs",
                    "search_space",
                    "valid_captions",
                    "foils",
                    "params:tuning",
                    "params:benchmarks",
                    "params:paths",
                    "params:command",
                    "params:variant",
                ],
                outputs="study",
                name="run_study",
            ),
            node(
                nodes.confirm_best,
                inputs=[
                    "study",
                    "trial_inputs",
                    "params:tuning",
                    "params:command",
                    "params:variant",
                    "params:paths.model_output",
                ],
                outputs="tuning_confirmation",
                name="confirm_best",
            ),
            node(
                nodes.write_study,
                inputs=[
                    "study",
                    "tuning_confirmation",
                    "trial_inputs",
                    "params:tuning",
                    "params:paths",
                    "params:dataset",
                    "params:variant",
                    "params:site",
                ],
                outputs="tuning_report",
                name="write_study",
            ),
        ]
    )
