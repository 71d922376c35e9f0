"""Wiring of the pipeline `monitoring`."""

from __future__ import annotations

from kedro.pipeline import Pipeline

from compo_pipeline.pipelines import step
from compo_pipeline.pipelines.monitoring.nodes import compare_requests


def create_pipeline() -> Pipeline:
    """Compare the request log of a served version with its reference sample.

    Its inputs are the registry and the log, not the catalog.
    """
    return Pipeline(
        [
            step(
                compare_requests,
                [],
                ["monitoring", "monitoring_report"],
                log_folder="serving.log.folder",
            ),
        ],
    )
