"""Wiring of the pipeline `attention`."""

from __future__ import annotations

from kedro.pipeline import Pipeline

from compo_pipeline.pipelines import step
from compo_pipeline.pipelines.attention.nodes import draw_attention


def create_pipeline() -> Pipeline:
    """Draw the attention of phrases over images, before fine-tuning and after."""
    return Pipeline(
        [
            step(draw_attention, ["valid_captions", "checkpoint", "run"], "attention_report"),
        ],
    )
