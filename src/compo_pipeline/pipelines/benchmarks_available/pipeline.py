"""Wiring of the pipeline `benchmarks_available`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.benchmarks_available.nodes import list_benchmarks


def create_pipeline() -> Pipeline:
    """Kedro pipeline that lists all known benchmarks and their missing files."""
    return Pipeline(
        [
            node(
                list_benchmarks,
                inputs="params:benchmarks",
                outputs="missing_images",
                name="list_benchmarks",
            )
        ]
    )
