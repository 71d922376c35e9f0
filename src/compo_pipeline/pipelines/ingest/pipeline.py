"""Wiring of the pipeline `ingest`."""

from __future__ import annotations

from kedro.pipeline import Pipeline

from compo_pipeline.pipelines import step
from compo_pipeline.pipelines.ingest import nodes


def create_pipeline() -> Pipeline:
    """Generate rendered data, caption images if asked to, and read and measure the captions."""
    return Pipeline(
        [
            step(nodes.prepare_source, [], "source"),
            step(
                nodes.recaption_images,
                ["source"],
                ["recaptions", "recaptions_quarantine", "recaptions_report", "recaptions_preview"],
                carve="foils.carve",
                state="paths.recaptions_state",
            ),
            step(
                nodes.ingest_captions,
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
