"""Wiring of the pipeline `registration`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.registration.nodes import export_checkpoint, register_export


def create_pipeline() -> Pipeline:
    """The registration pipeline."""
    return Pipeline(
        [
            node(
                export_checkpoint,
                inputs=[
                    "checkpoint",
                    "run",
                    "manifest",
                    "comparison",
                    "scores",
                    "scored_items",
                    "valid_captions",
                    "params:registration",
                    "params:evaluation",
                    "params:data.root",
                    "params:paths.export",
                ],
                outputs="export",
                name="export_checkpoint",
            ),
            node(
                register_export,
                inputs=[
                    "export",
                    "run",
                    "manifest",
                    "comparison",
                    "params:registration",
                    "params:data.root",
                ],
                outputs="registered",
                name="register_export",
            ),
        ],
        namespace="registration",
        prefix_datasets_with_namespace=False,
    )
