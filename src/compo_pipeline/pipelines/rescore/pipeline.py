"""Wiring of the pipeline `rescore`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.rescore.nodes import rescore_version


def create_pipeline() -> Pipeline:
    """Score a registered version again, and register it anew."""
    return Pipeline(
        [
            node(
                rescore_version,
                inputs=[
                    "benchmark_items",
                    "item_slices",
                    "training_rows",
                    "valid_captions",
                    "manifest",
                    "params:data.root",
                    "params:model",
                    "params:evaluation",
                    "params:registration",
                    "params:tracking",
                ],
                outputs="rescored",
                name="rescore_version",
            ),
        ],
    )
