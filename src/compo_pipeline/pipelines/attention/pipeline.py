"""Wiring of the pipeline `attention`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.attention.nodes import measure_attention, show_attention

_SETTINGS = [f"params:{name}" for name in ("attention", "evaluation", "model", "data", "ingest")]


def create_pipeline() -> Pipeline:
    """The attention pipeline."""
    return Pipeline(
        [
            node(
                measure_attention,
                inputs=["checkpoint", "control_checkpoint", *_SETTINGS],
                outputs="attention",
                name="measure_attention",
            ),
            node(
                show_attention,
                inputs=[
                    "attention",
                    "checkpoint",
                    "run",
                    *_SETTINGS,
                    "params:paths.attention_report",
                ],
                outputs="attention_report",
                name="show_attention",
            ),
        ]
    )
