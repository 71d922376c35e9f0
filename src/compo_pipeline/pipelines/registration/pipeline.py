"""Wiring of the pipeline `registration`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.registration import nodes


def create_pipeline() -> Pipeline:
    """Export the checkpoint with a card, and register it in MLflow."""
    return Pipeline(
        [
            node(
                nodes.list_materials,
                inputs=[
                    "params:model",
                    "params:dataset",
                    "params:data",
                    "manifest",
                    "params:method",
                    "params:language.model",
                    "params:recaption",
                    "params:counterfactuals",
                ],
                outputs="materials",
                name="list_materials",
            ),
            node(
                nodes.export_checkpoint,
                inputs=[
                    "checkpoint",
                    "run",
                    "manifest",
                    "materials",
                    "comparison",
                    "scores",
                    "scored_items",
                    "valid_captions",
                    "params:data.root",
                    "params:evaluation",
                    "params:registration",
                    "params:promotion.waive",
                    "params:tuning.benchmarks",
                ],
                outputs="export",
                name="export_checkpoint",
            ),
            node(
                nodes.register_export,
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
