"""Wiring of the pipeline `counterfactuals`."""

from __future__ import annotations

from kedro.pipeline import Pipeline

from compo_pipeline.pipelines import step
from compo_pipeline.pipelines.counterfactuals import nodes


def create_pipeline() -> Pipeline:
    """Edit the captions, and generate images of the edits.

    It also writes a page of them to look at, and their count.
    """
    return Pipeline(
        [
            step(
                nodes.make_counterfactuals,
                ["valid_captions", "facts"],
                ["counterfactuals", "counterfactuals_quarantine", "counterfactual_images"],
                state="paths.counterfactuals_state",
            ),
            step(
                nodes.preview_counterfactuals,
                ["counterfactuals", "counterfactual_images", "valid_captions"],
                "counterfactuals_preview",
            ),
            step(
                nodes.check_counterfactuals,
                ["counterfactuals", "params:counterfactuals", "counterfactuals_preview"],
                "counterfactuals_report",
            ),
        ],
        namespace="counterfactuals",
        prefix_datasets_with_namespace=False,
    )
