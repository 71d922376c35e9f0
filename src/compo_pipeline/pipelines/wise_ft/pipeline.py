"""Wiring of the pipeline `wise_ft`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.wise_ft.nodes import (
    choose_validation_items,
    draw_trade_off,
    log_trade_off,
    score_mixtures,
)


def create_pipeline() -> Pipeline:
    """Kedro pipeline that scores WiSE-FT weight mixtures of base and fine-tuned model."""
    return Pipeline(
        [
            node(
                choose_validation_items,
                inputs=[
                    "valid_captions",
                    "foils",
                    "params:tuning.benchmarks",
                    "params:benchmarks",
                    "params:data.root",
                    "params:evaluation",
                ],
                outputs="validation_items",
                name="choose_validation_items",
            ),
            node(
                score_mixtures,
                inputs=[
                    "benchmark_items",
                    "validation_items",
                    "checkpoint",
                    "params:model",
                    "params:wise_ft",
                    "params:evaluation",
                ],
                outputs="wise_ft",
                name="score_mixtures",
            ),
            node(
                draw_trade_off,
                inputs=["wise_ft", "run", "params:site"],
                outputs="wise_ft_report",
                name="draw_trade_off",
            ),
            node(
                log_trade_off,
                inputs=["wise_ft", "wise_ft_report", "run"],
                outputs=None,
                name="log_trade_off",
            ),
        ]
    )
