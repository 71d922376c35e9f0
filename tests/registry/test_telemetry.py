"""What a server tells of itself: metrics, lines of its log in JSON, spans."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

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


def test_the_exchange_of_what_cannot_be_read_has_no_task(deployment: Deployment) -> None:
    assert Exchange("id", deployment.current).task == "none"
