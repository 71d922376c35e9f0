"""Wiring of the pipeline `tuning`."""

from __future__ import annotations

from kedro.pipeline import Pipeline

from compo_pipeline.pipelines import step
from compo_pipeline.pipelines.tuning import nodes


def create_pipeline() -> Pipeline:
    """Search a method's settings, and confirm the best values."""
    return Pipeline(
        [
            step(nodes.read_space, ["training_inputs"], ["trial_inputs", "search_space"]),
            step(
                nodes.run_study,
                ["trial_inputs", "search_space", "valid_captions", "foils"],
                "study",
            ),
            step(
                nodes.confirm_best,
                ["study", "trial_inputs"],
                "tuning_confirmation",
                folder="paths.model_output",
            ),
            step(
                nodes.write_study, ["study", "tuning_confirmation", "trial_inputs"], "tuning_report"
            ),
        ],
    )
