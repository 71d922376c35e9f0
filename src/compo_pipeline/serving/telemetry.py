"""Logs in JSON, and OpenTelemetry's spans, of the server."""

from __future__ import annotations

import logging
import os
from contextvars import ContextVar
from typing import TYPE_CHECKING

from compo_pipeline import __version__
from compo_pipeline.configuration.settings import SettingsError
from compo_pipeline.run.console import LineHandler

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

# OpenTelemetry's own variables of the collector's address; traces are sent where one is set.
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
# Id of the request that this task or thread works for.
REQUEST: ContextVar[str | None] = ContextVar("request", default=None)


def log_json() -> None:
    """Write each log record of this process as one JSON object per line to standard output.

    Beside time, level, logger and message it has the `request` that it belongs to and, of an
    answered or refused request, `status`, `task` and `seconds`.
    """
    from pythonjsonlogger.json import JsonFormatter

    handler = LineHandler()
    handler.setFormatter(
        JsonFormatter(
            ["levelname", "name", "message"],
            rename_fields={"levelname": "level", "name": "logger"},
            timestamp="time",
        )
    )
    handler.addFilter(_add_request)
    logging.getLogger().handlers = [handler]


def _add_request(record: logging.LogRecord) -> bool:
    """Logging filter that adds the id of the current request to a record."""
    if (request := REQUEST.get()) is not None:
        record.request = request
    return True


def tracer_provider() -> TracerProvider | None:
    """OpenTelemetry provider that sends spans to the collector; None if none is configured.

    OpenTelemetry's variables OTEL_* are the settings: its users have them in their deployments, and
    its SDK reads them (headers, service name, sampling, time-outs).

    Raises:
        SettingsError: the extra `tracing` is not installed.
    """
    named = next((name for name in ENDPOINTS if os.environ.get(name)), None)
    if named is None:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise SettingsError(
            f"{named} is set, and the exporter is not installed: pip install "
            "'compo-pipeline[tracing]', or unset the variable"
        ) from None
    resource = Resource.create({"service.version": __version__})
    if str(resource.attributes["service.name"]).startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": "compo-pipeline"}))
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider
