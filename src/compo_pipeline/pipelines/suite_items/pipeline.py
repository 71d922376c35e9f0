"""Part of `benchmark` and `benchmark_diff`: the items that a list of models is scored on."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.suite_items.nodes import gather_suite_items, read_named_captions


def create_pipeline() -> Pipeline:
    """Kedro pipeline part that reads benchmark items and training captions, in memory."""
    return Pipeline(
        [
            node(
                gather_suite_items,
                inputs=["params:benchmarks", "params:data", "params:generator_settings"],
                outputs="suite_items",
                name="gather_suite_items",
            ),
            node(
                read_named_captions,
                inputs="params:suite",
                outputs="named_captions",
                name="read_named_captions",
            ),
        ]
    )
