"""Wiring of the pipeline `wise_ft`."""

from __future__ import annotations

from kedro.pipeline import Pipeline

from compo_pipeline.pipelines import step
from compo_pipeline.pipelines.wise_ft import nodes


def create_pipeline() -> Pipeline:
    """Score mixtures of the base's and the fine-tuned model's weights."""
    return Pipeline(
        [
            step(
                nodes.score_mixtures,
                ["valid_captions", "foils", "checkpoint"],
                "wise_ft",
                selecting="tuning.benchmarks",
            ),
            step(nodes.draw_trade_off, ["wise_ft", "run"], "wise_ft_report"),
        ],
    )
