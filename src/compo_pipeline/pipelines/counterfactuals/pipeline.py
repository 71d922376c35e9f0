"""Wiring of the pipeline `counterfactuals`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.counterfactuals import nodes


def create_pipeline() -> Pipeline:
    """Edit the captions, and generate images of the edits.

    It also writes a page of them to look at, and their count.
    """
    return Pipeline(
        [
            node(
                nodes.make_counterfactuals,
                inputs=[
                    "valid_captions",
                    "facts",
                    "params:views.split",
                    "params:method",
                    "params:counterfactuals",
                    "params:language.model",
                    "params:data.root",
                    "params:generator_settings",
                    "params:paths.counterfactuals_state",
                    "params:prepare",
                ],
                outputs=["counterfactuals", "counterfactuals_quarantine", "counterfactual_images"],
                name="make_counterfactuals",
            ),
            node(
                nodes.preview_counterfactuals,
                inputs=[
                    "counterfactuals",
                    "counterfactual_images",
                    "valid_captions",
                    "params:dataset",
                    "params:data.root",
                ],
                outputs="counterfactuals_preview",
                name="preview_counterfactuals",
            ),
            node(
                nodes.check_counterfactuals,
                inputs=["counterfactuals", "params:counterfactuals", "counterfactuals_preview"],
                outputs="counterfactuals_report",
                name="check_counterfactuals",
            ),
        ],
        namespace="counterfactuals",
        prefix_datasets_with_namespace=False,
    )
