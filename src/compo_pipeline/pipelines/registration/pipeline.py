"""Wiring of the pipeline `registration`."""

from __future__ import annotations

from kedro.pipeline import Pipeline

from compo_pipeline.pipelines import step
from compo_pipeline.pipelines.registration import nodes
from compo_pipeline.registry.materials import list_materials


def create_pipeline() -> Pipeline:
    """Export the checkpoint with a card, and register it in MLflow."""
    return Pipeline(
        [
            step(list_materials, ["manifest"], "materials"),
            step(
                nodes.export_checkpoint,
                [
                    "checkpoint",
                    "run",
                    "manifest",
                    "materials",
                    "comparison",
                    "scores",
                    "scored_items",
                    "valid_captions",
                ],
                "export",
                waive="promotion.waive",
                tuned="tuning.benchmarks",
            ),
            step(nodes.register_export, ["export", "run", "manifest", "comparison"], "registered"),
        ],
        namespace="registration",
        prefix_datasets_with_namespace=False,
    )
