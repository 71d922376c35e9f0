"""Prometheus metrics of the server."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
)

if TYPE_CHECKING:
    from compo_pipeline.serving.exchange import Exchange, Served

_SECONDS = (0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
_ITEMS = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """Prometheus metrics of one server, on a registry of its own.

    Attributes:
        running: requests without a response yet.
        batches: images, or texts, of each forward pass, by `tower`.
        reloads: versions that an alias was moved to, by its `role` (champion, challenger) and
            `outcome`.
        dropped: rows that the request log did not write, by `reason`.
        shadow: requests for a challenger, by `outcome`.
    """

    def __init__(self) -> None:
        """Create the registry."""
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._requests = self._create_metric(
            Counter, "requests", "Requests to /invocations", "task", "status"
        )
        self._seconds = self._create_metric(
            Histogram, "request_seconds", "Seconds until the response", "task", buckets=_SECONDS
        )
        self._rows = self._create_metric(Counter, "rows", "Rows answered", "task")
        self._images = self._create_metric(
            Counter, "images", "Rows answered that have an image", "task"
        )
        self._model = self._create_metric(Info, "model", "The model that answers")
        self.running = self._create_metric(Gauge, "running_requests", "Requests in progress")
        self.batches = self._create_metric(
            Histogram, "batch_items", "Inputs of a forward pass", "tower", buckets=_ITEMS
        )
        self.reloads = self._create_metric(
            Counter, "reloads", "Versions that an alias was moved to", "role", "outcome"
        )
        self.dropped = self._create_metric(
            Counter, "log_rows_dropped", "Rows that the request log did not write", "reason"
        )
        self.shadow = self._create_metric(
            Counter, "shadow_requests", "Requests for the challenger in shadow", "outcome"
        )

    def _create_metric(
        self, kind: Any, name: str, meaning: str, *labels: str, **options: Any
    ) -> Any:
        """Create a metric with the prefix `compo_` on the registry."""
        return kind(f"compo_{name}", meaning, labels, registry=self.registry, **options)

    def serve(self, served: Served) -> None:
        """Record a newly served model in the metric that names the model answering requests."""
        self._model.info({name: str(value) for name, value in asdict(served).items()})

    def observe(self, exchange: Exchange) -> None:
        """Count a request and its answer: status, seconds, rows, images."""
        answered, task = exchange.answered, exchange.task
        self._requests.labels(task, exchange.status).inc()
        self._seconds.labels(task).observe(exchange.seconds)
        if answered is not None:
            self._rows.labels(task).inc(len(answered.output))
            self._images.labels(task).inc(0 if answered.images is None else len(answered.images))
