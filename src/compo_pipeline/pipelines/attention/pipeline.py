"""Wiring of the pipeline `attention`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.attention.nodes import draw_attention, log_attention


def create_pipeline() -> Pipeline:
    """Kedro pipeline that draws the attention of phrases on image patches."""
    return Pipeline(
        [
            node(
                draw_attention,
                inputs=[
                    "valid_captions",
                    "checkpoint",
                    "params:model",
                    "params:evaluation",
                    "params:data.root",
                    "params:language.model",
                    "params:attention",
                    "run",
                ],
                outputs="attention_report",
                name="draw_attention",
            ),
            node(
                log_attention,
                inputs=["attention_report", "run", "params:attention"],
                outputs=None,
                name="log_attention",
            ),
        ]
    )
