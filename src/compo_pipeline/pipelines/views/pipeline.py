"""Wiring of the pipeline `views`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.views.nodes import draw_views, parse_captions, preview_views


def create_pipeline() -> Pipeline:
    """Valid captions to parses to views, and a page of them to look at."""
    common = {
        "valid_captions": "valid_captions",
        "language_model": "params:language.model",
        "views": "params:views",
        "method": "params:method",
        "method_views": "params:method_settings.views",
        "prepare": "params:prepare",
    }
    return Pipeline(
        [
            node(parse_captions, inputs=common, outputs="parses", name="parse_captions"),
            node(
                draw_views,
                inputs={
                    **common,
                    "parses": "parses",
                    "counterfactuals": "counterfactuals",
                    "seed": "params:seed",
                    "folder": "params:paths.views",
                },
                outputs="views",
                name="draw_views",
            ),
            node(
                preview_views,
                inputs={
                    "views": "views",
                    "counterfactual_images": "counterfactual_images",
                    "method": "params:method",
                    "dataset": "params:dataset",
                    "seed": "params:seed",
                    "root": "params:data.root",
                    "folder": "params:paths.views_preview",
                },
                outputs="views_preview",
                name="preview_views",
            ),
        ],
        namespace="views",
        prefix_datasets_with_namespace=False,
    )
