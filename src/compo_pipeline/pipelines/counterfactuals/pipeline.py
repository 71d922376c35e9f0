"""Wiring of the pipeline `counterfactuals`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.counterfactuals.nodes import (
    check_counterfactuals,
    choose_engines,
    choose_jobs,
    make_counterfactuals,
    preview_counterfactuals,
)


def create_pipeline() -> Pipeline:
    """Kedro pipeline that edits valid captions and generates images of the edits.

    It also writes a page of them to look at, and their count.
    """
    return Pipeline(
        [
            node(
                choose_jobs,
                inputs=[
                    "valid_captions",
                    "facts",
                    "params:views.split",
                    "params:method",
                    "params:counterfactuals",
                ],
                outputs="counterfactual_jobs",
                name="choose_jobs",
            ),
            node(
                choose_engines,
                inputs=[
                    "params:counterfactuals",
                    "params:language.model",
                    "params:data.root",
                    "params:generator_settings",
                    "params:paths.counterfactuals_state",
                ],
                outputs="counterfactual_engines",
                name="choose_engines",
            ),
            node(
                make_counterfactuals,
                inputs=[
                    "counterfactual_jobs",
                    "counterfactual_engines",
                    "params:counterfactuals",
                    "params:data.root",
                    "params:paths.counterfactuals_state",
                    "params:prepare",
                ],
                outputs=["counterfactuals", "counterfactuals_quarantine", "counterfactual_images"],
                name="make_counterfactuals",
            ),
            node(
                preview_counterfactuals,
                inputs={
                    "counterfactuals": "counterfactuals",
                    "images": "counterfactual_images",
                    "valid_captions": "valid_captions",
                    "dataset": "params:dataset",
                    "root": "params:data.root",
                },
                outputs="counterfactuals_preview",
                name="preview_counterfactuals",
            ),
            node(
                check_counterfactuals,
                inputs=["counterfactuals", "params:counterfactuals", "counterfactuals_preview"],
                outputs="counterfactuals_report",
                name="check_counterfactuals",
            ),
        ],
        namespace="counterfactuals",
        prefix_datasets_with_namespace=False,
    )
