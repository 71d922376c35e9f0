"""Wiring of the pipeline `monitoring`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.monitoring.nodes import (
    add_requested_images,
    compare_words,
    log_monitoring,
    measure_requests,
    open_version,
    read_log,
    summarise,
    write_monitoring,
)


def create_pipeline() -> Pipeline:
    """Kedro pipeline that reports drift in the logged requests of a served model.

    Its inputs are the registry and the log, not the catalog.
    """
    return Pipeline(
        [
            node(
                open_version,
                inputs=["params:monitoring", "params:registration"],
                outputs="monitored_version",
                name="open_version",
            ),
            node(
                read_log,
                inputs=["monitored_version", "params:monitoring", "params:serving.log.folder"],
                outputs="request_window",
                name="read_log",
            ),
            node(
                measure_requests,
                inputs=["request_window", "monitored_version", "params:monitoring"],
                outputs="measured_requests",
                name="measure_requests",
            ),
            node(
                compare_words,
                inputs=[
                    "request_window",
                    "monitored_version",
                    "params:monitoring",
                    "params:language.model",
                ],
                outputs="requested_words",
                name="compare_words",
            ),
            node(
                summarise,
                inputs=[
                    "request_window",
                    "monitored_version",
                    "measured_requests",
                    "requested_words",
                    "params:monitoring",
                ],
                outputs="monitoring",
                name="summarise",
            ),
            node(
                add_requested_images,
                inputs=["request_window", "measured_requests", "params:serving.log.folder"],
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
