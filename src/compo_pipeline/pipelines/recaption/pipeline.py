"""Wiring of the pipeline `recaption`."""

from __future__ import annotations

from kedro.pipeline import Pipeline

from compo_pipeline.pipelines import step
from compo_pipeline.pipelines.recaption.nodes import recaption_images


def create_pipeline() -> Pipeline:
    """Caption the images of a source with a model."""
    return Pipeline(
        [
            step(
                recaption_images,
                ["source"],
                ["recaptions", "recaptions_quarantine", "recaptions_report", "recaptions_preview"],
                carve="foils.carve",
                state="paths.recaptions_state",
            ),
        ],
        namespace="data",
        prefix_datasets_with_namespace=False,
    )
