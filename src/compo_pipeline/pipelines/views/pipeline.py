"""Wiring of the pipeline `views`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.views import nodes


def create_pipeline() -> Pipeline:
    """Parse the captions, and draw the training examples of every epoch.

    It also writes a page of views to look at.
    """
    return Pipeline(
        [
            node(
                nodes.parse_captions,
                inputs=[
                    "valid_captions",
                    "params:views.split",
                    "params:method",
                    "params:language.model",
                    "params:prepare",
                ],
                outputs="parses",
                name="parse_captions",
            ),
            node(
                nodes.join_annotations,
                inputs=[
                    "valid_captions",
                    "params:method",
                    "params:method_settings.views",
                    "params:views",
                ],
                outputs="annotations",
                name="join_annotations",
            ),
            node(
                nodes.draw_views,
                inputs=[
                    "valid_captions",
                    "parses",
                    "counterfactuals",
                    "annotations",
                    "params:method",
                    "params:method_settings.views",
                    "params:views",
                    "params:data",
                    "params:language.model",
                    "params:seed",
                    "params:paths.resume",
                    "params:prepare",
                ],
                outputs="views",
                name="draw_views",
            ),
            node(
                nodes.preview_views,
                inputs=[
                    "views",
                    "counterfactual_images",
                    "params:method",
                    "params:dataset",
                    "params:seed",
                    "params:data.root",
                ],
                outputs="views_preview",
                name="preview_views",
            ),
        ],
        namespace="views",
        prefix_datasets_with_namespace=False,
    )
