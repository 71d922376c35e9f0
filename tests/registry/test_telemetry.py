"""What a server tells of itself: metrics, lines of its log in JSON, spans."""

import builtins
import importlib.metadata
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from compo_pipeline.configuration.settings import SettingsError
from compo_pipeline.models.loading import load
from compo_pipeline.serving import server as serving
from compo_pipeline.serving import telemetry
from compo_pipeline.serving.deployment import Deployment
from compo_pipeline.serving.exchange import Exchange, Served
from compo_pipeline.serving.settings import ServingSettings
from compo_pipeline.versions.model import ImageTextModel

GOOD = {
    "dataframe_records": [{"text": "a cat"}, {"text": "a dog"}],
    "params": {"task": "embed"},
}


@pytest.fixture
def deployment(tiny_clip: Path) -> Deployment:
    loaded = load(tiny_clip)
    return Deployment(loaded, Served("toy-clip", 3, loaded.fingerprint), ServingSettings())


def samples(client: TestClient) -> dict[tuple[str, ...], float]:
    """Values by name and labels, in the labels' order, as Prometheus' own parser reads them."""
    response = client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=")
    return {
        (sample.name, *(sample.labels[label] for label in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


def test_metrics_count_requests_rows_and_passes(deployment: Deployment) -> None:
    client = TestClient(serving.build(deployment))
    for _ in range(3):
        assert client.post("/invocations", json=GOOD).status_code == 200
    unknown = {"dataframe_records": [{"text": "a cat"}], "params": {"task": "x" * 50}}
    assert client.post("/invocations", json=unknown).status_code == 400
    found = samples(client)
    assert found["compo_requests_total", "200", "embed"] == 3
    assert found["compo_requests_total", "400", "none"] == 1
    assert found["compo_rows_total", "embed"] == 6
    assert found["compo_request_seconds_count", "embed"] == 3
    assert found[("compo_queue_requests",)] == 0
    assert found["compo_batch_items_sum", "text"] == 2, "the texts are known from the first one"
    assert found[("process_resident_memory_bytes",)] > 1e6
    served = deployment.current.served
    facts = (served.fingerprint, "toy-clip", served.program, "3")
    assert found[("compo_model_info", *facts)] == 1
    deployment.metrics.dropped.labels(reason="full").inc(5)
    assert samples(client)["compo_log_rows_dropped_total", "full"] == 5


def test_each_application_has_metrics_of_its_own(tiny_clip: Path) -> None:
    loaded = load(tiny_clip)
    served = Served("toy-clip", 3, loaded.fingerprint)
    one, other = (
        TestClient(serving.build(Deployment(loaded, served, ServingSettings()))) for _ in range(2)
    )
    one.post("/invocations", json=GOOD)
    assert ("compo_requests_total", "200", "embed") in samples(one)
    assert ("compo_requests_total", "200", "embed") not in samples(other)


@pytest.fixture
def root_handlers() -> Iterator[None]:
    root = logging.getLogger()
    before = list(root.handlers)
    yield
    root.handlers = before


@pytest.mark.usefixtures("root_handlers")
def test_lines_of_the_log_are_objects_with_the_id_of_their_request(
    deployment: Deployment,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level("INFO", "compo_pipeline")
    telemetry.log_json()
    client = TestClient(serving.build(deployment))
    answered = client.post("/invocations", json=GOOD)
    refused = client.post("/invocations", json={})

    def fault(*_: Any) -> None:
        raise RuntimeError("two\nlines")

    monkeypatch.setattr(ImageTextModel, "_answer", fault)
    failed = client.post("/invocations", json=GOOD)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    lines = [line for line in lines if line["logger"].startswith("compo_pipeline")]
    ends = [line for line in lines if "status" in line]
    assert [(line["request"], line["status"], line["task"]) for line in ends] == [
        (answered.headers["x-request-id"], 200, "embed"),
        (refused.headers["x-request-id"], 400, "none"),
        (failed.headers["x-request-id"], 500, "none"),
    ]
    assert all(line["level"] == "INFO" and line["seconds"] > 0 and line["time"] for line in ends)
    (fault_line,) = [line for line in lines if "exc_info" in line]
    assert fault_line["request"] == failed.headers["x-request-id"]
    assert "two\nlines" in fault_line["exc_info"]


def test_spans_of_a_request_are_one_trace(tiny_clip: Path) -> None:
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    exporter, provider = memory.InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))
    loaded = load(tiny_clip)
    deployment = Deployment(
        *(loaded, Served("toy-clip", 3, loaded.fingerprint), ServingSettings()),
        tracer=provider.get_tracer("test"),
    )
    client = TestClient(serving.build(deployment))
    trace = "0af7651916cd43dd8448eb211c80319c"
    sent = {"traceparent": f"00-{trace}-b7ad6b7169203331-01"}
    response = client.post("/invocations", json=GOOD, headers=sent)
    spans = {span.name: span for span in exporter.get_finished_spans()}
    request = spans["POST /invocations"]
    assert {f"{span.context.trace_id:032x}" for span in spans.values()} == {trace}
    assert f"{request.parent.span_id:016x}" == "b7ad6b7169203331"
    assert spans["read"].parent.span_id == spans["answer"].parent.span_id
    assert spans["answer"].parent.span_id == request.context.span_id
    assert spans["encode text"].parent.span_id == spans["answer"].context.span_id
    assert spans["encode text"].attributes["compo.inputs"] == 2
    assert request.attributes["http.response.status_code"] == 200
    assert request.attributes["compo.request_id"] == response.headers["x-request-id"]
    assert (request.attributes["compo.task"], request.attributes["compo.rows"]) == ("embed", 2)


def test_spans_are_sent_where_the_environment_names_a_collector(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in telemetry.ENDPOINTS:
        monkeypatch.delenv(name, raising=False)
    assert telemetry.tracer_provider() is None
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)
    importing = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("opentelemetry.exporter"):
            raise ImportError(name)
        return importing(name, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(builtins, "__import__", without)
        with pytest.raises(SettingsError, match=r"^OTEL_EXPORTER_OTLP_ENDPOINT .*\[tracing\]"):
            telemetry.tracer_provider()
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    provider = telemetry.tracer_provider()
    assert provider is not None
    facts = provider.resource.attributes
    assert facts["service.name"] == "compo-pipeline"
    assert facts["service.version"] == importlib.metadata.version("compo-pipeline")
    provider.shutdown()


def test_the_exchange_of_what_cannot_be_read_has_no_task(deployment: Deployment) -> None:
    assert Exchange("id", deployment.current).task == "none"
