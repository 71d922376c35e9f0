"""Wiring of the pipeline `recaption`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.recaption.nodes import recaption_images


def create_pipeline() -> Pipeline:
    """Caption the images of a source with a model."""
    return Pipeline(
        [
            node(
                recaption_images,
                inputs=[
                    "source",
                    "params:data",
                    "params:ingest",
                    "params:recaption",
                    "params:language.model",
                    "params:prepare",
                    "params:foils.carve",
                    "params:paths.recaptions_state",
                    "params:dataset",
                ],
                outputs=[
                    "recaptions",
                    "recaptions_quarantine",
                    "recaptions_report",
                    "recaptions_preview",
                ],
                name="recaption_images",
            ),
        ],
        namespace="data",
        prefix_datasets_with_namespace=False,
    )
