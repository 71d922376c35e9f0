"""Wiring of the pipeline `promotion`."""

from __future__ import annotations

from kedro.pipeline import Pipeline

from compo_pipeline.pipelines import step
from compo_pipeline.pipelines.promotion.nodes import judge_challenger, refuse


def create_pipeline() -> Pipeline:
    """Make the registered challenger champion if it passes the gate.

    Its input is the registry, not the catalog.
    """
    return Pipeline(
        [
            step(judge_challenger, [], ["decision", "promotion_report"]),
            step(refuse, ["decision", "promotion_report"], None),
        ],
    )
