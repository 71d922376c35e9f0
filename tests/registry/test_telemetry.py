"""Prometheus metrics of a server."""

from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from compo_pipeline.models.loading import load
from compo_pipeline.serving import server as serving
from compo_pipeline.serving.deployment import Deployment
from compo_pipeline.serving.exchange import Served
from compo_pipeline.serving.settings import ServingSettings

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
    assert found[("compo_running_requests",)] == 0
    assert found["compo_batch_items_sum", "text"] == 2, "the texts are known from the first one"
    assert found[("process_resident_memory_bytes",)] > 1e6
    served = deployment.current.served
    facts = (served.fingerprint, "toy-clip", served.program, "3")
    assert found[("compo_model_info", *facts)] == 1
    deployment.metrics.dropped.labels(reason="full").inc(5)
    assert samples(client)["compo_log_rows_dropped_total", "full"] == 5
