"""Wiring of the pipeline `ingest`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.ingest.nodes import ingest_captions


def create_pipeline() -> Pipeline:
    """Read the captions of every source, and measure them."""
    return Pipeline(
        [
            node(
                ingest_captions,
                inputs=[
                    "source",
                    "params:data",
                    "params:ingest",
                    "params:prepare",
                    "params:foils.carve",
                    "params:recaption",
                    "recaptions",
                    "recaptions_quarantine",
                ],
                outputs=["captions", "facts", "unparseable", "ingest_report", "manifest"],
                name="ingest_captions",
            )
        ],
        namespace="data",
        prefix_datasets_with_namespace=False,
    )
