"""Wiring of the pipeline `ingest`."""

from __future__ import annotations

from kedro.pipeline import Pipeline

from compo_pipeline.pipelines import step
from compo_pipeline.pipelines.ingest.nodes import ingest_captions


def create_pipeline() -> Pipeline:
    """Read the captions of every source, and measure them."""
    return Pipeline(
        [
            step(
                ingest_captions,
                [
                    "source",
                    "params:data",
                    "params:ingest",
                    "params:prepare",
                    "params:foils.carve",
                    "params:recaption",
                    "recaptions",
                    "recaptions_quarantine",
                ],
                ["captions", "facts", "unparseable", "ingest_report", "manifest"],
            ),
        ],
        namespace="data",
        prefix_datasets_with_namespace=False,
    )
