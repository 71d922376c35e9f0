"""Wiring of the pipeline `views`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.views.nodes import (
    build_method,
    choose_context,
    choose_rows,
    draw_views,
    join_annotations,
    parse_captions,
    preview_views,
)


def create_pipeline() -> Pipeline:
    """Kedro pipeline that parses valid captions and draws training views of every epoch.

    It also writes a page of views to look at.
    """
    return Pipeline(
        [
            node(
                choose_rows,
                inputs=["valid_captions", "params:views.split"],
                outputs="view_rows",
                name="choose_rows",
            ),
            node(
                build_method,
                inputs=["params:method", "params:method_settings.views"],
                outputs="view_method",
                name="build_method",
            ),
            node(
                parse_captions,
                inputs=["view_rows", "view_method", "params:language.model", "params:prepare"],
                outputs="parses",
                name="parse_captions",
            ),
            node(
                join_annotations,
                inputs=["view_rows", "view_method", "params:views"],
                outputs="annotations",
                name="join_annotations",
            ),
            node(
                choose_context,
                inputs=[
                    "parses",
                    "counterfactuals",
                    "annotations",
                    "view_method",
                    "params:views",
                    "params:language.model",
                    "params:seed",
                ],
                outputs=["view_context", "view_context_fingerprint"],
                name="choose_context",
            ),
            node(
                draw_views,
                inputs=[
                    "view_rows",
                    "view_method",
                    "view_context",
                    "view_context_fingerprint",
                    "params:views",
                    "params:prepare",
                    "params:data",
                ],
                outputs="views",
                name="draw_views",
            ),
            node(
                preview_views,
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
