"""Wiring of the pipeline `rollback`."""

from __future__ import annotations

from kedro.pipeline import Pipeline

from compo_pipeline.pipelines import step
from compo_pipeline.pipelines.rollback.nodes import roll_back_champion


def create_pipeline() -> Pipeline:
    """Make the previous champion champion again.

    Its input is the registry, not the catalog.
    """
    return Pipeline(
        [
            step(roll_back_champion, [], "promotion_report"),
        ],
    )
