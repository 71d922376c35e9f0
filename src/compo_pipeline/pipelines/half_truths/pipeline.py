"""Wiring of the pipeline `half_truths`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.half_truths.nodes import build_half_truths


def create_pipeline() -> Pipeline:
    """The pipeline that builds half-truths."""
    return Pipeline(
        [
            node(
                build_half_truths,
                inputs=["valid_captions", "params:benchmarks", "params:language.model"],
                outputs="half_truths",
                name="build_half_truths",
            )
        ]
    )
