"""Wiring of the pipeline `promotion`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.promotion.nodes import judge_challenger, refuse


def create_pipeline() -> Pipeline:
    """Make the registered challenger champion if it passes the gate.

    Its input is the registry, not the catalog.
    """
    return Pipeline(
        [
            node(
                judge_challenger,
                inputs=[
                    "params:promotion",
                    "params:registration",
                    "params:tracking",
                    "params:site",
                ],
                outputs=["decision", "promotion_report"],
                name="judge_challenger",
            ),
            node(
                refuse,
                inputs=["decision", "promotion_report"],
                outputs=None,
                name="refuse",
            ),
        ]
    )
