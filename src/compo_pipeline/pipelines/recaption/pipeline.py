"""Wiring of the pipeline `recaption`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.recaption import nodes


def create_pipeline() -> Pipeline:
    """Caption the images of a source with a model."""
    made = ["recaptioning", "params:recaption"]
    return Pipeline(
        [
            node(
                nodes.recaption_images,
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
                outputs=["recaptioning", "recaptions_report", "recaptions_preview"],
                name="recaption_images",
            ),
            # In a dry run they yield nothing, and Kedro writes nothing.
            node(nodes.recaption_rows, inputs=made, outputs="recaptions", name="recaption_rows"),
            node(
                nodes.rejected_recaptions,
                inputs=made,
                outputs="recaptions_quarantine",
                name="rejected_recaptions",
            ),
        ],
        namespace="data",
        prefix_datasets_with_namespace=False,
    )
