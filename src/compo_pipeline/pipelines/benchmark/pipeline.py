"""Wiring of the pipeline `benchmark`."""

from __future__ import annotations

from kedro.pipeline import Pipeline

from compo_pipeline.pipelines import step
from compo_pipeline.pipelines.benchmark import nodes


def create_pipeline() -> Pipeline:
    """Score the models of a list on the benchmarks, without a training."""
    return Pipeline(
        [
            step(nodes.gather_items, [], "suite_items"),
            step(
                nodes.score_listed,
                ["suite_items"],
                ["suite_scores", "suite"],
                "score_models",
                embeddings="paths.embeddings",
            ),
            step(
                nodes.write_report,
                ["suite", "suite_scores", "suite_items"],
                ["item_changes", "suite_report"],
            ),
        ],
    )
