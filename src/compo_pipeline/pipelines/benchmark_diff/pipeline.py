"""Wiring of the pipeline `benchmark_diff`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.benchmark_diff.nodes import (
    diff_models,
    slice_for_diff,
    write_diff_page,
)


def create_pipeline() -> Pipeline:
    """Kedro pipeline that compares two models item by item."""
    return Pipeline(
        [
            node(
                slice_for_diff,
                inputs=[
                    "suite_items",
                    "named_captions",
                    "params:evaluation",
                    "params:language.model",
                ],
                outputs="sliced_diff_items",
                name="slice_for_diff",
            ),
            node(
                diff_models,
                inputs=[
                    "suite_scores",
                    "suite",
                    "params:models",
                    "params:suite",
                    "sliced_diff_items",
                    "params:evaluation",
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
                    "suite_items",
                    "params:evaluation",
                    "params:site",
                ],
                outputs="benchmark_diff_report",
                name="write_diff_page",
            ),
        ]
    )
