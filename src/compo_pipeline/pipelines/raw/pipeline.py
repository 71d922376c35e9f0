"""The raw pipeline: one node for every source."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.raw.nodes import prepare_source


def create_pipeline() -> Pipeline:
    """Settings to a source that is there and complete."""
    return Pipeline(
        [
            node(
                prepare_source,
                inputs=["params:data", "params:scenes"],
                outputs="source",
                name="prepare_source",
            )
        ]
    )
