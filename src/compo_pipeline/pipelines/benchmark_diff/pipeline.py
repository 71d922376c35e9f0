"""Wiring of the pipeline `benchmark_diff`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.benchmark_diff.nodes import diff_models, write_diff_page


def create_pipeline() -> Pipeline:
    """The pipeline that compares two models item by item."""
    return Pipeline(
        [
            node(
                diff_models,
                inputs=[
                    "suite_scores",
                    "suite",
                    "params:models",
                    "params:suite",
                    "params:benchmarks",
                    "params:evaluation",
                    "params:language.model",
                ],
                outputs=["item_changes", "benchmark_diff"],
                name="diff_models",
            ),
            node(
                write_diff_page,
                inputs=[
                    "item_changes",
                    "benchmark_diff",
                    "params:models",
                    "params:benchmarks",
                    "params:evaluation",
                    "params:command",
                    "params:paths.suite_report",
                    "params:paths.benchmark_diff_report",
                ],
                outputs="benchmark_diff_report",
                name="write_diff_page",
            ),
        ]
    )
