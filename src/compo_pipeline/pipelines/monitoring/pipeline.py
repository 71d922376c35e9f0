"""Wiring of the pipeline `monitoring`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.monitoring.nodes import (
    add_requested_images,
    log_monitoring,
    measure_requests,
    write_monitoring,
)


def create_pipeline() -> Pipeline:
    """Compare the request log of a served version with its reference sample.

    Its inputs are the registry and the log, not the catalog.
    """
    return Pipeline(
        [
            node(
                measure_requests,
                inputs=[
                    "params:monitoring",
                    "params:registration",
                    "params:serving.log.folder",
                    "params:language.model",
                ],
                outputs=["monitoring", "request_window", "measured_requests"],
                name="measure_requests",
            ),
            node(
                add_requested_images,
                inputs=[
                    "request_window",
                    "measured_requests",
                    "params:serving.log.folder",
                    "params:paths.requested_images",
                ],
                outputs="requested_images",
                name="add_requested_images",
            ),
            node(
                write_monitoring,
                inputs=[
                    "monitoring",
                    "measured_requests",
                    "requested_images",
                    "params:data",
                    "params:dataset",
                    "params:site",
                ],
                outputs="monitoring_report",
                name="write_monitoring",
            ),
            node(
                log_monitoring,
                inputs=["monitoring", "monitoring_report"],
                outputs=None,
                name="log_monitoring",
            ),
        ]
    )
