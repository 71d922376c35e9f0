"""Wiring of the pipeline `rollback`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.rollback.nodes import roll_back_champion


def create_pipeline() -> Pipeline:
    """Make the previous champion champion again.

    Its input is the registry, not the catalog.
    """
    return Pipeline(
        [
            node(
                roll_back_champion,
                inputs=[
                    "params:promotion",
                    "params:registration",
                    "params:tracking",
                    "params:site",
                ],
                outputs="promotion_report",
                name="roll_back_champion",
            ),
        ]
    )
