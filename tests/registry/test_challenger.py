"""A challenger beside the champion of `compo-pipeline serve`: in shadow."""

import base64
import io
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import mlflow
import numpy as np
import pytest
import uvicorn
from click.testing import CliRunner
from fastapi.testclient import TestClient
from mlflow.protos.databricks_pb2 import INTERNAL_ERROR
from PIL import Image
from tests.registry.asked import embedded, encoded
from tests.waiting import until

from compo_pipeline.cli import serve
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.models.loading import LoadedModel, load
from compo_pipeline.registry import runs as tracking
from compo_pipeline.registry.model import RequestError
from compo_pipeline.registry.settings import RegistrationSettings, SigningSettings
from compo_pipeline.registry.tracking_settings import TrackingSettings
from compo_pipeline.serving import challenger as trials
from compo_pipeline.serving import server as serving
from compo_pipeline.serving.challenger import Shadow
from compo_pipeline.serving.deployment import Deployment
from compo_pipeline.serving.exchange import Served
from compo_pipeline.serving.settings import ServingSettings

LEAST = 12
Models = tuple[LoadedModel, LoadedModel]


CELLS = [
    encoded(Image.fromarray(draw.integers(0, 255, (32, 32, 3), dtype=np.uint8)))
    for draw in map(np.random.default_rng, range(3))
]
WORDS = "a red blue cube cup dog key on the left of two".split()


def question(seed: int, rows: int = 1, texts: int = 2) -> dict[str, Any]:
    """A request that ranks random texts for one or several images."""
    drawn = np.random.default_rng(seed)
    candidates = [" ".join(drawn.choice(WORDS, 4)) + f" {k}" for k in range(texts)]
    records = [{"image": cell} for cell in CELLS[:rows]]
    return {"dataframe_records": records, "params": {"task": "rank", "texts": candidates}}


@pytest.fixture(scope="module")
def pair(tiny_model: Callable[..., Path]) -> Models:
    """Champion and challenger."""
    return load(tiny_model(seed=1)), load(tiny_model(seed=2))


def order(loaded: LoadedModel, body: dict[str, Any]) -> list[list[int]]:
    """Candidates of each row, the best first."""
    images = [
        Image.open(io.BytesIO(base64.b64decode(row["image"]))) for row in body["dataframe_records"]
    ]
    u, t = embedded(loaded, images, body["params"]["texts"])
    found: list[list[int]] = (u @ t.T).argsort(dim=1, descending=True).tolist()
    return found


def alike(pair: Models, body: dict[str, Any]) -> bool:
    """Whether both models order all rows alike."""
    ours, theirs = (order(loaded, body) for loaded in pair)
    return ours == theirs


class Server:
    """A champion and a challenger, in this process."""

    def __init__(self, pair: Models, shadow: float) -> None:
        served = [Served("toy", n, each.fingerprint) for n, each in enumerate(pair, start=1)]
        self.deployment = Deployment(pair[0], served[0], ServingSettings())
        self.shadow = Shadow(self.deployment, pair[1], served[1], shadow)
        application = serving.build(self.deployment, [self.shadow], (), self.shadow)
        self.client = TestClient(application)

    def ask(self, body: dict[str, Any]) -> Any:
        return self.client.post("/invocations", json=body)

    def ask_all(self, bodies: Iterable[dict[str, Any]]) -> list[Any]:
        """Ask, and wait until the challenger was asked too."""
        before = self.counted().total()
        answers = [self.ask(body) for body in bodies]
        until(lambda: self.counted().total() == before + len(answers))
        return answers

    def counted(self) -> Counter[str]:
        """Requests by outcome."""
        (found,) = self.deployment.metrics.shadow.collect()
        totals = (each for each in found.samples if each.name.endswith("_total"))
        return Counter({each.labels["outcome"]: int(each.value) for each in totals})


@pytest.fixture
def server(pair: Models) -> Iterator[Callable[..., Server]]:
    """Makes servers."""
    made: list[Server] = []

    def make(shadow: float) -> Server:
        made.append(Server(pair, shadow))
        return made[-1]

    yield make
    for each in made:
        each.shadow.close()


def test_the_agreement_is_the_share_of_requests_ordered_alike(
    server: Callable[..., Server], pair: Models
) -> None:
    served = server(shadow=1.0)
    bodies = [question(number, rows=1 + 2 * (number % 2)) for number in range(40)]
    for answer in served.ask_all(bodies):
        assert answer.headers["x-model-version"] == "1"
    same = sum(alike(pair, body) for body in bodies)
    assert 1 < same < 39, "the models differ on some requests"
    assert served.counted() == {"same": same, "different": 40 - same}
    told = served.client.get("/shadow").json()
    assert (told["challenger"]["version"], told["compared"]) == (2, 40)
    assert told["agreement"] == pytest.approx(2.5 * same)


def test_what_has_nothing_to_order_is_not_asked(server: Callable[..., Server]) -> None:
    served = server(shadow=1.0)
    one = question(0, texts=1)
    embed = {"dataframe_records": [{"text": "a"}], "params": {"task": "embed"}}
    couple = {"dataframe_records": [{"image": CELLS[0], "text": "a"}]}
    wrong = {"dataframe_records": [{"image": "x"}], "params": question(0)["params"]}
    for body in (one, embed, couple, wrong):
        served.ask(body)
    labels = {"dataframe_records": [{"image": CELLS[0]}]}
    served.ask({**labels, "params": {"task": "classify", "labels": ["cup", "dog"]}})
    served.ask({**labels, "params": {"texts": ["a cup", "a dog"]}})
    until(lambda: served.counted().total() >= 2)
    served.shadow.close()
    assert served.counted().total() == 2


def test_a_shadow_that_fails_or_is_slow_is_not_the_users_problem(
    server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "_QUEUE", 100_000)
    served, go = server(shadow=1.0), threading.Event()

    def slow(*_: Any) -> None:
        go.wait(300)
        raise RequestError("broken", error_code=INTERNAL_ERROR)

    monkeypatch.setattr(served.shadow.current.model, "answer", slow)
    count = 20
    for number in range(count):
        assert served.ask(question(number)).status_code == 200
    until(lambda: served.counted()["queue full"] > 0)
    go.set()
    until(lambda: served.counted().total() == count)
    found = served.counted()
    assert set(found) == {"failed", "queue full"} and 1 <= found["failed"] < count
    monkeypatch.undo()
    served.ask(question(0))
    until(lambda: served.counted().total() == count + 1)


def test_another_challenger_begins_anew(
    server: Callable[..., Server], pair: Models, tiny_clip: Path
) -> None:
    served, other = server(shadow=1.0), load(tiny_clip)
    bodies = [question(number) for number in range(LEAST)]
    served.ask_all(bodies)
    found = [served.client.get("/shadow").json()]
    served.shadow.swap(other, Served("toy", 3, other.fingerprint))
    told = served.client.get("/shadow").json()
    assert (told["challenger"]["version"], told["compared"], told["agreement"]) == (3, 0, None)
    served.ask_all(bodies)
    found.append(served.client.get("/shadow").json())
    for loaded, told in zip((pair[1], other), found, strict=True):
        expected = [alike((pair[0], loaded), body) for body in bodies]
        assert (told["compared"], told["agreement"]) == (
            LEAST,
            pytest.approx(100 * np.mean(expected)),
        )


def test_a_challenger_with_the_weights_of_the_champion_pauses(
    server: Callable[..., Server], pair: Models
) -> None:
    served, promoted = server(shadow=1.0), Served("toy", 2, pair[1].fingerprint)
    served.ask_all(question(number) for number in range(LEAST))
    assert not served.client.get("/shadow").json()["paused"]
    served.deployment.swap(pair[1], promoted)
    assert served.client.get("/shadow").json()["paused"]
    for number in range(3):
        assert served.ask(question(number)).headers["x-model-version"] == "2"
    until(lambda: served.counted()["same model"] == 3)
    served.shadow.swap(pair[0], Served("toy", 3, pair[0].fingerprint))
    assert not served.client.get("/shadow").json()["paused"]
    served.ask(question(0))
    until(lambda: served.client.get("/shadow").json()["compared"] == 1)


class Registry(NamedTuple):
    """A registered model with a champion and a challenger, versions 1 and 2."""

    name: str
    add: Callable[[LoadedModel], Path]
    serve: Callable[..., list[TestClient]]


@pytest.fixture
def registry(
    configure: Callable[[str], None],
    version_files: Callable[..., dict[str, str]],
    sealed: Callable[..., Any],
    pair: Models,
    key_pair: Callable[..., SigningSettings],
    mlflow_project: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    free_port: Callable[[], int],
) -> Registry:
    configure("challenger")
    keys, client = key_pair("challenger"), mlflow.MlflowClient()
    name = f"challenged-{tmp_path.name}"
    client.create_registered_model(name)
    numbers = itertools.count(1)

    def add(loaded: LoadedModel) -> Path:
        """The folder of a model that is registered as the next version."""
        folder = tmp_path / f"version {next(numbers)}"
        tags = version_files(loaded, folder)
        run_id = tracking.open_run("made", {})
        sealed(client.create_model_version(name, str(folder), run_id, tags=tags), keys)
        return folder

    for number, alias in enumerate(("champion", "challenger")):
        add(pair[number])
        client.set_registered_model_alias(name, alias, str(number + 1))
    registration = RegistrationSettings(name, signing=keys)

    def start(
        trial: tuple[str, float],
        ask: Callable[[TestClient], object] = lambda client: None,
        settings: ServingSettings | None = None,
        registration: RegistrationSettings = registration,
        model: str | None = None,
    ) -> None:
        def run(application: Any, **_: Any) -> None:
            with TestClient(application) as client:
                ask(client)

        monkeypatch.setattr(uvicorn, "run", run)
        monkeypatch.chdir(mlflow_project)
        given = settings or ServingSettings(), registration, TrackingSettings()
        serving.run(*given, model, None, None, "127.0.0.1", free_port(), *trial)

    return Registry(name, add, start)


def test_the_challenger_follows_its_alias_while_requests_come(
    registry: Registry, tiny_clip: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = load(tiny_clip)
    weights = next(registry.add(other).rglob("open_clip_model.safetensors"))
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    registry.add(other)
    ended, statuses = threading.Event(), Counter[int]()

    def ask(client: TestClient) -> None:
        def asking() -> None:
            for number in itertools.count():
                if ended.is_set():
                    return
                statuses[client.post("/invocations", json=question(number)).status_code] += 1

        def move(version: int, alias: str = "challenger") -> None:
            mlflow.MlflowClient().set_registered_model_alias(registry.name, alias, str(version))

        def told() -> dict[str, Any]:
            found: dict[str, Any] = client.get("/shadow").json()
            return found

        thread = threading.Thread(target=asking)
        thread.start()
        try:
            until(lambda: told()["compared"] > 2 * LEAST)
            move(3)
            until(lambda: "version 2 stays" in caplog.text)
            assert told()["challenger"]["version"] == 2 and told()["compared"] > 2 * LEAST
            move(4)
            until(lambda: told()["challenger"]["version"] == 4 and told()["compared"] > 2 * LEAST)
            move(4, "champion")
            until(lambda: told()["paused"])
            assert client.get("/version").json()["version"] == 4
            move(1)
            until(lambda: told()["challenger"]["version"] == 1 and told()["compared"] > 2 * LEAST)
        finally:
            ended.set()
            thread.join()

    settings = ServingSettings(reload_seconds=0.05)
    registry.serve(("challenger", 1.0), ask, settings)
    assert set(statuses) == {200}


def test_a_promoted_challenger_waits_for_the_next_one(
    registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that is started again after a promotion, when both aliases name one version."""
    mlflow.MlflowClient().set_registered_model_alias(registry.name, "champion", "2")

    def ask(client: TestClient) -> None:
        until(lambda: client.get("/shadow").json()["paused"])
        mlflow.MlflowClient().set_registered_model_alias(registry.name, "challenger", "1")
        until(lambda: client.get("/shadow").json()["challenger"]["version"] == 1)
        client.post("/invocations", json=question(0))
        until(lambda: client.get("/shadow").json()["compared"] == 1)

    registry.serve(("challenger", 1.0), ask, ServingSettings(reload_seconds=0.05))
    never = ServingSettings(reload_seconds=0)
    mlflow.MlflowClient().set_registered_model_alias(registry.name, "challenger", "2")
    with pytest.raises(SettingsError, match="--shadow: version 2 has the weights of version 2"):
        registry.serve(("challenger", 1.0), settings=never)


def test_a_challenger_that_cannot_be_tried_is_refused(registry: Registry, tiny_clip: Path) -> None:
    refused: list[tuple[tuple[str, float], str]] = [
        (("nobody", 0.1), "--shadow: no version of .* has the alias 'nobody'"),
        (("7", 0.1), "--shadow: .* has no version 7"),
        (("champion", 0.1), "--shadow: version 1 has the weights of version 1"),
    ]
    for trial, reason in refused:
        with pytest.raises(SettingsError, match=reason):
            registry.serve(trial)
    with pytest.raises(SettingsError, match="--shadow: expected a registered version"):
        registry.serve(("challenger", 0.1), model=str(tiny_clip))
    registry.serve(("2", 0.1))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--shadow", "x", "--share", "1.1"], "--share"),
        (["--share", "0.1"], "--share is of --shadow"),
    ],
)
def test_shares_are_above_zero_and_at_most_one(options: list[str], reason: str) -> None:
    result = CliRunner().invoke(serve, options)
    assert result.exit_code == 2 and reason in result.output
