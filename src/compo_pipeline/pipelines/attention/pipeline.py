"""Wiring of the pipeline `attention`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.attention.nodes import draw_attention


def create_pipeline() -> Pipeline:
    """Draw the attention of phrases over images, before fine-tuning and after."""
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
                    "params:site",
                ],
                outputs="attention_report",
                name="draw_attention",
            ),
        ]
    )
