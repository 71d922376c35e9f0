"""Wiring of the pipeline `export`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.export.nodes import export_formats


def create_pipeline() -> Pipeline:
    """Kedro pipeline that exports a checkpoint to Hugging Face and ONNX formats."""
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
