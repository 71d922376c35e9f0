"""Wiring of the pipeline `promotion`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.promotion.nodes import act


def create_pipeline() -> Pipeline:
    """The promotion pipeline; its input is the registry, not the catalog."""
    return Pipeline(
        [
            node(
                act,
                inputs={
                    "promotion": "params:promotion",
                    "registration": "params:registration",
                    "tracking": "params:tracking",
                    "command": "params:command",
                    "report": "params:paths.promotion_report",
                },
                outputs="promotion_report",
                name="promote",
            )
        ]
    )
