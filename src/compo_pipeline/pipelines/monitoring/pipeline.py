"""Wiring of the pipeline `monitoring`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.monitoring.nodes import compare_requests


def create_pipeline() -> Pipeline:
    """Compare the request log of a served version with its reference sample.

    Its inputs are the registry and the log, not the catalog.
    """
    return Pipeline(
        [
            node(
                compare_requests,
                inputs=[
                    "params:monitoring",
                    "params:registration",
                    "params:serving.log.folder",
                    "params:site",
                ],
                outputs=["monitoring", "monitoring_report"],
                name="compare_requests",
            )
        ]
    )
