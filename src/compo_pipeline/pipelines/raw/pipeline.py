"""Wiring of the pipeline `raw`."""

from __future__ import annotations

from kedro.pipeline import Pipeline

from compo_pipeline.pipelines import step
from compo_pipeline.pipelines.raw.nodes import prepare_source


def create_pipeline() -> Pipeline:
    """Generate the data, if they are rendered, and check that every source is complete."""
    return Pipeline(
        [
            step(prepare_source, [], "source"),
        ],
        namespace="data",
        prefix_datasets_with_namespace=False,
    )
