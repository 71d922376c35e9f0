"""Part of `promotion` and `rollback`: the page of a decision, and its lines in the terminal."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.decision.nodes import report_decision, write_decision


def create_pipeline() -> Pipeline:
    """Kedro pipeline part that writes a promotion decision's page and prints the decision."""
    return Pipeline(
        [
            node(
                write_decision,
                inputs=["decision", "params:site"],
                outputs="promotion_report",
                name="write_decision",
            ),
            node(
                report_decision,
                inputs=["decision", "promotion_report"],
                outputs=None,
                name="report_decision",
            ),
        ]
    )
