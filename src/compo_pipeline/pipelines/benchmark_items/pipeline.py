"""Part of `evaluation`, `rescore` and `wise_ft`: the items that models are scored on."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.benchmark_items.nodes import gather_items


def create_pipeline() -> Pipeline:
    """Kedro pipeline part that turns captions and benchmark files into items, in memory."""
    return Pipeline(
        [
            node(
                gather_items,
                inputs=["valid_captions", "foils", "params:benchmarks", "params:data.root"],
                outputs="benchmark_items",
                name="gather_items",
            ),
        ],
        namespace="evaluation",
        prefix_datasets_with_namespace=False,
    )
