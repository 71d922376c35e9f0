"""Versions in the registry -> a decision about its aliases."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.promotion.nodes import act


def create_pipeline() -> Pipeline:
    """The promotion pipeline; its input is the registry, not the catalog."""
    return Pipeline(
        [
            node(
                act,
                inputs=[
                    "params:promotion",
                    "params:registration",
                    "params:tracking",
                    "params:evaluation",
                    "params:benchmarks",
                    "params:model",
                    "params:data.root",
                    "params:command",
                    "params:paths.promotion_report",
                    "params:language.model",
                ],
                outputs="promotion_report",
                name="promote",
            )
        ]
    )
