"""Wiring of the pipeline `counterfactuals`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.counterfactuals.nodes import (
    check_counterfactuals,
    make_counterfactuals,
    preview_counterfactuals,
)


def create_pipeline() -> Pipeline:
    """Valid captions to edited ones with images, a page of them to look at, and their count."""
    return Pipeline(
        [
            node(
                make_counterfactuals,
                inputs={
                    "valid_captions": "valid_captions",
                    "facts": "facts",
                    "counterfactuals": "params:counterfactuals",
                    "split": "params:views.split",
                    "language_model": "params:language.model",
                    "root": "params:data.root",
                    "scenes": "params:scenes",
                    "folder": "params:paths.counterfactual_images",
                    "state": "params:paths.counterfactuals_state",
                    "method": "params:method",
                    "prepare": "params:prepare",
                },
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
                    "folder": "params:paths.counterfactuals_preview",
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
