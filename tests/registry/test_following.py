"""A server whose alias is moved while it answers."""

import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlflow
import pytest
from fastapi.testclient import TestClient
from PIL import Image
from tests.registry.asked import embedded, encoded

from compo_pipeline.core.settings import SettingsError
from compo_pipeline.models.loading import LoadedModel, load
from compo_pipeline.registry import model, versions
from compo_pipeline.registry.model import RequestLimits
from compo_pipeline.registry.settings import SigningSettings
from compo_pipeline.serving import deployment as deploying
from compo_pipeline.serving import server as serving
from compo_pipeline.serving.deployment import Deployment, Follower
from compo_pipeline.serving.exchange import Served
from compo_pipeline.serving.settings import ServingSettings

NAME, ALIAS = "followed-clip", "champion"
DAMAGED = 3
TEXTS = ["a red square", "two cats"]


RED = Image.new("RGB", (40, 40), "red")
BODY = {"dataframe_records": [{"image": encoded(RED)}], "params": {"texts": TEXTS}}


@dataclass
class Registry:
    """Two versions and a damaged third; `models` are those of the first two."""

    models: dict[int, LoadedModel]

    def move(self, version: int) -> None:
        mlflow.MlflowClient().set_registered_model_alias(NAME, ALIAS, str(version))

    def similarities(self, version: int) -> list[float]:
        """Of the request's image and texts, computed without the server."""
        u, t = embedded(self.models[version], [RED], TEXTS)
        found: list[float] = (u @ t.T)[0].tolist()
        return found


@pytest.fixture(scope="module")
def registry(
    version_files: Callable[..., dict[str, str]],
    sealed: Callable[..., Any],
    tiny_model: Callable[..., Path],
    mlflow_project: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Registry:
    folder = tmp_path_factory.mktemp("versions")
    client = mlflow.MlflowClient()
    client.create_registered_model(NAME)
    models = {version: load(tiny_model(seed=version)) for version in (1, 2)}
    for version, loaded in models.items():
        tags = version_files(loaded, folder / str(version))
        sealed(client.create_model_version(NAME, str(folder / str(version)), tags=tags))
    shutil.copytree(folder / "2", folder / "3")
    tags = client.get_model_version(NAME, "2").tags
    sealed(client.create_model_version(NAME, str(folder / "3"), tags=tags))
    (weights,) = (folder / "3").glob("artifacts/*/open_clip_model.safetensors")
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    return Registry(models)


@pytest.fixture
def deployment(registry: Registry, mlflow_project: Path) -> Deployment:
    registry.move(1)
    loaded = registry.models[1]
    settings = ServingSettings(reload_seconds=0.0625)
    return Deployment(loaded, Served(NAME, 1, loaded.fingerprint), settings)


@pytest.fixture
def follower(deployment: Deployment) -> Follower:
    return Follower(deployment, SigningSettings(), NAME, ALIAS, "cpu")


def reloads(deployment: Deployment, outcome: str) -> float:
    found = deployment.metrics.registry.get_sample_value(
        "compo_reloads_total", {"role": "champion", "outcome": outcome}
    )
    return found or 0


def test_requests_in_flight_end_on_the_model_that_they_began_with(
    registry: Registry, deployment: Deployment, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = TestClient(serving.build(deployment))
    decoding, release, read = threading.Event(), threading.Event(), model.read_image

    def slow(value: str, limits: RequestLimits) -> Image.Image:
        decoding.set()
        assert release.wait(60)
        return read(value, limits)

    monkeypatch.setattr(model, "read_image", slow)
    with ThreadPoolExecutor(1) as pool:
        early = pool.submit(client.post, "/invocations", json=BODY)
        assert decoding.wait(60)
        registry.move(2)
        follower.look()
        release.set()
        responses = [early.result(60), client.post("/invocations", json=BODY)]
    for version, response in enumerate(responses, start=1):
        assert response.headers["x-model-version"] == str(version)
        (row,) = response.json()["predictions"]
        assert row["similarities"] == pytest.approx(registry.similarities(version), abs=1e-6)
    told = client.get("/version").json()
    assert (told["version"], told["fingerprint"]) == (2, registry.models[2].fingerprint)
    assert reloads(deployment, "served") == 1
    follower.look()
    assert reloads(deployment, "served") == 1, "an alias that stays is not read again"


def test_a_version_that_is_not_the_registered_one_is_refused(
    registry: Registry,
    deployment: Deployment,
    follower: Follower,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr(deploying, "time", SimpleNamespace(monotonic=lambda: now))
    client = TestClient(serving.build(deployment))
    registry.move(DAMAGED)
    follower.look()
    assert reloads(deployment, "refused") == 1
    assert client.post("/invocations", json=BODY).headers["x-model-version"] == "1"
    (line,) = [each for each in caplog.messages if "serving.reload_seconds" in each]
    assert f"{NAME} version 1 stays" in line and f"{NAME} version 3 is not" in line
    tries = []
    for _ in range(4):
        now += 400
        follower.look()
        tries.append(reloads(deployment, "refused"))
    assert tries == [1, 2, 2, 3], "every ten minutes"
    registry.move(2)
    follower.look()
    assert deployment.current.served.version == 2


def test_a_registry_that_does_not_answer_changes_nothing(
    registry: Registry,
    deployment: Deployment,
    follower: Follower,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def away(*_: Any) -> None:
        raise SettingsError("tracking.uri: no answer")

    with monkeypatch.context() as patch:
        patch.setattr(versions, "find", away)
        follower.look()
    assert reloads(deployment, "unreachable") == 1 and "tracking.uri: no answer" in caplog.text
    registry.move(2)
    follower.look()
    assert deployment.current.served.version == 2
