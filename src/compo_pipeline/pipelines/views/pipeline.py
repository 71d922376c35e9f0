"""Wiring of the pipeline `views`."""

from __future__ import annotations

from kedro.pipeline import Pipeline

from compo_pipeline.pipelines import step
from compo_pipeline.pipelines.views import nodes


def create_pipeline() -> Pipeline:
    """Parse the captions, and draw the training examples of every epoch.

    It also writes a page of views to look at.
    """
    return Pipeline(
        [
            step(nodes.parse_captions, ["valid_captions"], "parses"),
            step(
                nodes.join_annotations,
                ["valid_captions"],
                "annotations",
                method_views="method_settings.views",
            ),
            step(
                nodes.draw_views,
                ["valid_captions", "parses", "counterfactuals", "annotations"],
                "views",
                method_views="method_settings.views",
                state="paths.resume",
            ),
            step(nodes.preview_views, ["views", "counterfactual_images"], "views_preview"),
        ],
        namespace="views",
        prefix_datasets_with_namespace=False,
    )
