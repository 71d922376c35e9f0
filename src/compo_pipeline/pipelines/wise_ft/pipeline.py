"""Wiring of the pipeline `wise_ft`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.wise_ft import nodes


def create_pipeline() -> Pipeline:
    """Score mixtures of the base's and the fine-tuned model's weights."""
    return Pipeline(
        [
            node(
                nodes.score_mixtures,
                inputs=[
                    "valid_captions",
                    "foils",
                    "checkpoint",
                    "params:model",
                    "params:tuning.benchmarks",
                    "params:benchmarks",
                    "params:evaluation",
                    "params:data.root",
                ],
                outputs="wise_ft",
                name="score_mixtures",
            ),
            node(
                nodes.draw_trade_off,
                inputs=["wise_ft", "run", "params:site"],
                outputs="wise_ft_report",
                name="draw_trade_off",
            ),
        ]
    )
