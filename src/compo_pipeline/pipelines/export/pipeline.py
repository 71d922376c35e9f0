"""Wiring of the pipeline `export`."""

from __future__ import annotations

from kedro.pipeline import Pipeline

from compo_pipeline.pipelines import step
from compo_pipeline.pipelines.export.nodes import export_formats


def create_pipeline() -> Pipeline:
    """Convert the checkpoint to the formats of transformers and ONNX."""
    return Pipeline(
        [
            step(export_formats, ["checkpoint", "comparison"], "exported"),
        ],
    )
