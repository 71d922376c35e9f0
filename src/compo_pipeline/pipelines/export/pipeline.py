"""Wiring of the pipeline `export`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.export.nodes import export_formats


def create_pipeline() -> Pipeline:
    """Convert the checkpoint to the formats of transformers and ONNX."""
    return Pipeline(
        [
            node(
                export_formats,
                inputs=["checkpoint", "comparison", "params:export"],
                outputs="exported",
                name="export_formats",
            )
        ]
    )
