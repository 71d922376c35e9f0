"""Wiring of the pipeline `raw`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.raw.nodes import prepare_source


def create_pipeline() -> Pipeline:
    """Generate the data, if they are rendered, and check that every source is complete."""
    return Pipeline(
        [
            node(
                prepare_source,
                inputs=["params:data", "params:generator_settings"],
                outputs="source",
                name="prepare_source",
            )
        ],
        namespace="data",
        prefix_datasets_with_namespace=False,
    )
