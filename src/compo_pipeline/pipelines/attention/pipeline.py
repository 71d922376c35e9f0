"""Wiring of the pipeline `attention`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.attention.nodes import (
    choose_cases,
    draw_attention,
    log_attention,
    measure_attention,
    write_attention,
)


def create_pipeline() -> Pipeline:
    """Kedro pipeline that measures and draws the attention of phrases on image patches."""
    return Pipeline(
        [
            node(
                choose_cases,
                inputs=["params:attention", "params:data", "params:ingest"],
                outputs="attention_cases",
                name="choose_cases",
            ),
            node(
                measure_attention,
                inputs=[
                    "attention_cases",
                    "checkpoint",
                    "control_checkpoint",
                    "params:model",
                    "params:evaluation",
                ],
                outputs="attention",
                name="measure_attention",
            ),
            node(
                draw_attention,
                inputs=[
                    "attention",
                    "attention_cases",
                    "checkpoint",
                    "params:model",
                    "params:evaluation",
                    "params:attention",
                ],
                outputs="attention_panels",
                name="draw_attention",
            ),
            node(
                write_attention,
                inputs=[
                    "attention",
                    "attention_panels",
                    "attention_cases",
                    "run",
                    "params:attention",
                ],
                outputs="attention_report",
                name="write_attention",
            ),
            node(
                log_attention,
                inputs=["attention", "attention_report", "run", "params:attention"],
                outputs=None,
                name="log_attention",
            ),
        ]
    )
