"""Wiring of the pipeline `recaption`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.recaption.nodes import (
    preview_recaptions,
    recaption_images,
    recaption_report,
    recaption_rows,
    rejected_recaptions,
)


def create_pipeline() -> Pipeline:
    """Kedro pipeline that captions the source's images with a model, and previews them."""
    made = ["recaptioning", "params:recaption"]
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
                ],
                outputs="recaptioning",
                name="recaption_images",
            ),
            node(
                preview_recaptions,
                inputs=[*made, "params:dataset", "params:data.root"],
                outputs="recaptions_preview",
                name="preview_recaptions",
            ),
            # In a dry run they yield nothing, and Kedro writes nothing.
            node(recaption_rows, inputs=made, outputs="recaptions", name="recaption_rows"),
            node(
                rejected_recaptions,
                inputs=made,
                outputs="recaptions_quarantine",
                name="rejected_recaptions",
            ),
            node(
                recaption_report,
                inputs=made,
                outputs="recaptions_report",
                name="recaption_report",
            ),
        ],
        namespace="recaption",
        prefix_datasets_with_namespace=False,
    )
