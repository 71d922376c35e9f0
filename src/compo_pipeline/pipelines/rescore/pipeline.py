"""Wiring of the pipeline `rescore`."""

from __future__ import annotations

from kedro.pipeline import Pipeline

from compo_pipeline.pipelines import step
from compo_pipeline.pipelines.rescore.nodes import rescore_version


def create_pipeline() -> Pipeline:
    """Score a registered version again, and register it as a new version."""
    return Pipeline(
        [
            step(
                rescore_version,
                ["benchmark_items", "item_slices", "training_rows", "valid_captions", "manifest"],
                "rescored",
                base="model",
            ),
        ],
    )
