"""Wiring of the pipeline `monitoring`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.monitoring import nodes


def create_pipeline() -> Pipeline:
    """Compare the request log of a served version with its reference sample.

    Its inputs are the registry and the log, not the catalog.
    """
    return Pipeline(
        [
            node(
                nodes.measure_requests,
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
                nodes.write_monitoring,
                inputs=[
                    "monitoring",
                    "request_window",
                    "measured_requests",
                    "params:serving.log.folder",
                    "params:site",
                ],
                outputs="monitoring_report",
                name="write_monitoring",
            ),
            node(
                nodes.log_monitoring,
                inputs=["monitoring", "monitoring_report"],
                outputs=None,
                name="log_monitoring",
            ),
        ]
    )
