"""Wiring of the pipeline `benchmark`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.benchmark import nodes


def create_pipeline() -> Pipeline:
    """Score the models of a list on the benchmarks, without a training."""
    return Pipeline(
        [
            node(
                nodes.gather_items,
                inputs=[
                    "params:benchmarks",
                    "params:data",
                    "params:generator_settings",
                ],
                outputs="suite_items",
                name="gather_items",
            ),
            node(
                nodes.score_listed,
                inputs=[
                    "suite_items",
                    "params:models",
                    "params:model_lists",
                    "params:registration",
                    "params:benchmarks",
                    "params:evaluation",
                    "params:paths.embeddings",
                ],
                outputs=["suite_scores", "suite"],
                name="score_models",
            ),
            node(
                nodes.write_report,
                inputs=[
                    "suite",
                    "suite_scores",
                    "suite_items",
                    "params:models",
                    "params:benchmarks",
                    "params:evaluation",
                    "params:site",
                ],
                outputs=["item_changes", "suite_report"],
                name="write_report",
            ),
        ]
    )
