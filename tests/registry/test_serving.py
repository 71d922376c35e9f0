"""The model behind both servers, MLflow's and `compo-pipeline serve`: answers and refusals."""

import base64
import http.client
import io
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import mlflow
import openai
import pandas
import pytest
import torch
import uvicorn
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st
from mlflow.pyfunc import scoring_server
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families
from tests.registry.asked import deployed, embedded, encoded

from compo_pipeline import __version__
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.models.loading import LoadedModel, load
from compo_pipeline.registry import model, registration
from compo_pipeline.registry.model import RequestLimits
from compo_pipeline.registry.settings import RegistrationSettings
from compo_pipeline.registry.tracking_settings import TrackingSettings
from compo_pipeline.registry.verification import VersionError
from compo_pipeline.serving import server as serving
from compo_pipeline.serving.exchange import Exchange
from compo_pipeline.serving.server import write_answer
from compo_pipeline.serving.settings import ServingLimits, ServingSettings

TEXTS = ["a red square", "two cats", "a blue sphere"]
COLOURS = ["red", "lime", "blue", "black"]


PICTURES = [Image.new("RGB", (40, 40), colour) for colour in COLOURS]
IMAGES = [*map(encoded, PICTURES)]


LIMITS = {"rows": 4, "texts": 5, "characters": 300, "answer": 1000, "bytes": 5000}


@pytest.fixture(scope="module", params=["mlflow", "serve"])
def server(
    request: pytest.FixtureRequest, tiny_clip: Path, tmp_path_factory: pytest.TempPathFactory
) -> TestClient:
    """A server with small limits, in this process: MLflow's own, or this project's."""
    root = tmp_path_factory.mktemp("root")
    (root / "red.png").write_bytes(base64.b64decode(IMAGES[0]))
    if request.param == "serve":
        settings = ServingSettings(image_root=root, body=50_000, limits=ServingLimits(**LIMITS))
        return serving_client(load(tiny_clip), settings)
    folder = tmp_path_factory.mktemp("served") / "model"
    mlflow.pyfunc.save_model(
        folder,
        python_model=str(Path(model.__file__)),
        artifacts={"model": str(tiny_clip)},
        signature=registration._model_signature(),
        input_example=registration._input_example(),
        pip_requirements=registration.requirements(tiny_clip),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMPO_CLIP_IMAGE_ROOT", str(root))
        patch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
        # The server marks the process as its own.
        patch.setenv("_MLFLOW_IS_IN_SERVING_ENVIRONMENT", "true")
        served = mlflow.pyfunc.load_model(str(folder))
        python_model: Any = served.unwrap_python_model()
        python_model.limits = replace(python_model.limits, **LIMITS)
        app = scoring_server.init(served)
    return TestClient(app)


def serving_client(loaded: LoadedModel, settings: ServingSettings) -> TestClient:
    """`compo-pipeline serve` in this process."""
    return TestClient(serving.build(deployed(loaded, settings)))


@pytest.fixture(scope="module")
def loaded(tiny_clip: Path) -> LoadedModel:
    return load(tiny_clip)


def payload(*rows: dict[str, Any], **params: Any) -> dict[str, Any]:
    return {"dataframe_records": list(rows), "params": params}


def answers(server: TestClient, body: dict[str, Any]) -> list[dict[str, Any]]:
    response = server.post("/invocations", json=body)
    assert response.status_code == 200, response.text
    predictions: list[dict[str, Any]] = response.json()["predictions"]
    return predictions


ROWS = [{"image": image} for image in IMAGES]
PAIRS = [[IMAGES[0], TEXTS[0]], [IMAGES[1], TEXTS[1]]]
TABLES: list[dict[str, Any]] = [
    {"dataframe_records": [{"image": image, "text": text} for image, text in PAIRS]},
    {"dataframe_split": {"columns": ["text", "image"], "data": [pair[::-1] for pair in PAIRS]}},
    {"inputs": {"image": [pair[0] for pair in PAIRS], "text": [pair[1] for pair in PAIRS]}},
    {"inputs": [{"image": image, "text": text} for image, text in PAIRS]},
    {"instances": [{"image": image, "text": text} for image, text in PAIRS]},
]


@pytest.mark.parametrize("body", TABLES, ids=lambda body: next(iter(body)))
def test_a_table_of_pairs_needs_no_params(
    server: TestClient, loaded: LoadedModel, body: dict[str, Any]
) -> None:
    u, t = embedded(loaded, PICTURES, TEXTS)
    expected = (u @ t.T).diagonal()[:2].tolist()
    found = answers(server, body)
    assert [row["similarity"] for row in found] == pytest.approx(expected, abs=1e-6)
    assert all(list(row) == ["similarity"] for row in found)


@pytest.mark.parametrize("server", ["serve"], indirect=True)
def test_csv_of_a_spreadsheet_begins_with_a_mark(server: TestClient) -> None:
    lines = "\n".join(",".join(pair) for pair in PAIRS)
    marked = f"\ufeffimage,text\n{lines}\n".encode()
    response = server.post("/invocations", content=marked, headers={"content-type": "text/csv"})
    assert response.json()["predictions"] == answers(server, TABLES[0])


@pytest.mark.parametrize("server", ["serve"], indirect=True)
def test_nothing_of_a_request_is_dropped_in_silence(server: TestClient) -> None:
    headers = {"content-type": "text/csv"}
    unquoted = f"image,text\n{PAIRS[0][0]},a heart, and a key\n"
    response = server.post("/invocations", content=unquoted, headers=headers)
    assert response.status_code == 400
    assert "row 0 has 3 cells in 2 columns" in response.json()["message"]
    misspelt = {"dataframe_records": payload(*ROWS)["dataframe_records"], "parms": {}}
    response = server.post("/invocations", json=misspelt)
    assert response.status_code == 400
    assert response.json()["message"].startswith("parms: ")


def test_each_image_is_scored_with_each_text(server: TestClient, loaded: LoadedModel) -> None:
    u, t = embedded(loaded, PICTURES, TEXTS)
    found = answers(server, payload(*ROWS, texts=TEXTS))
    for row, expected in zip(found, (u @ t.T).tolist(), strict=True):
        assert row == {"similarities": pytest.approx(expected, abs=1e-6)}


def test_embeddings(server: TestClient, loaded: LoadedModel) -> None:
    u, t = embedded(loaded, PICTURES, TEXTS)
    of_images = answers(server, payload(*ROWS, task="embed"))
    of_texts = answers(server, payload(*({"text": text} for text in TEXTS), task="embed"))
    for rows, expected in ((of_images, u), (of_texts, t)):
        found = torch.tensor([row["embedding"] for row in rows])
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


def test_texts_are_ranked_for_each_image(server: TestClient, loaded: LoadedModel) -> None:
    u, t = embedded(loaded, PICTURES, TEXTS)
    found = answers(server, payload(*ROWS, task="rank", texts=TEXTS))
    orders = (u @ t.T).argsort(dim=1, descending=True).tolist()
    assert [row["texts"] for row in found] == [[TEXTS[k] for k in order] for order in orders]
    for row, similarities in zip(found, (u @ t.T).tolist(), strict=True):
        expected = sorted(similarities, reverse=True)
        assert row["similarities"] == pytest.approx(expected, abs=1e-6)


def test_labels_are_told_apart_under_templates(server: TestClient, loaded: LoadedModel) -> None:
    labels, templates = ["cat", "square"], ["a {}", "{}s"]
    u, t = embedded(loaded, PICTURES, ["a cat", "cats", "a square", "squares"])
    classes = torch.nn.functional.normalize(t.reshape(2, 2, -1).mean(dim=1), dim=-1)
    expected = (loaded.model.logit_scale.exp() * u @ classes.T).softmax(dim=1)
    asked = payload(*ROWS, task="classify", labels=labels, templates=templates)
    for row, probabilities in zip(answers(server, asked), expected, strict=True):
        assert row["probabilities"] == pytest.approx(probabilities.tolist(), abs=1e-5)
        assert row["probability"] == max(row["probabilities"])
        assert row["label"] == labels[int(probabilities.argmax())]


def test_classify_has_a_template_of_its_own(server: TestClient) -> None:
    asked = {"task": "classify", "labels": ["cat", "square"]}
    plain = answers(server, payload(*ROWS, **asked))
    assert plain == answers(server, payload(*ROWS, **asked, templates=["a photo of a {}."]))


def test_a_file_below_the_root(server: TestClient) -> None:
    (found,) = answers(server, payload({"image": "red.png", "text": "x"}))
    (expected,) = answers(server, payload({"image": IMAGES[0], "text": "x"}))
    assert found["similarity"] == pytest.approx(expected["similarity"], abs=1e-6)


@pytest.mark.parametrize(
    ("columns", "params"),
    [
        (["text"], {"task": "embed"}),
        (["image"], {"task": "rank", "texts": [*TEXTS, 'ein "großer" Würfel \u2028 \n']}),
        (["image"], {"task": "classify", "labels": ["Hündin", "cat"]}),
    ],
)
@pytest.mark.parametrize("count", [0, 3])
def test_an_answer_is_written_as_mlflow_writes_it(
    loaded: LoadedModel, columns: list[str], params: dict[str, Any], count: int
) -> None:
    cells = {"image": IMAGES[:count], "text": [TEXTS[k % 2] for k in range(count)]}
    table = pandas.DataFrame({name: cells[name] for name in columns}, dtype=object)
    model = deployed(loaded, ServingSettings()).current.model
    output = model.answer(table, params).output
    expected = io.StringIO()
    scoring_server.predictions_to_json(output, expected)
    assert write_answer(output) == expected.getvalue()


def test_the_signature_names_every_answer(server: TestClient) -> None:
    asked: list[dict[str, Any]] = [
        payload({"image": IMAGES[0], "text": "x"}),
        payload(ROWS[0], texts=TEXTS),
        payload(ROWS[0], task="embed"),
        payload(ROWS[0], task="rank", texts=TEXTS),
        payload(ROWS[0], task="classify", labels=TEXTS),
    ]
    names = {name for body in asked for name in answers(server, body)[0]}
    assert names == set(registration._model_signature().outputs.input_names())


JSON = {"content-type": "application/json"}
IMAGE = {"image": IMAGES[0]}
NOISE = base64.b64encode(os.urandom(6000)).decode()
WIDE = [encoded(Image.new("RGB", (70, 40), colour)) for colour in ("red", "blue", "lime")]
HALF = IMAGES[0][: len(IMAGES[0]) // 8 * 4]
REFUSED: list[tuple[dict[str, Any], str]] = [
    (payload(IMAGE), "the table has no column text"),
    (payload({"text": "x"}, texts=TEXTS), "the column text or with params.texts, not both"),
    (payload(IMAGE, {"image": None}, texts=TEXTS), "row 1: image is"),
    (payload({"image": IMAGES[0], "text": "  "}), "row 0: text is ' "),
    (payload(IMAGE, task="caption"), "expected one of score, embed, rank, classify"),
    (payload(IMAGE, task="rank"), "the task rank expects params.texts"),
    (payload(IMAGE, task="classify", labels=["a"], templates=["b"]), "needs one {}"),
    (payload(IMAGE, task="rank", texts=TEXTS, labels=["a"]), "params.labels is not a parameter"),
    (payload(*[IMAGE] * 5, texts=TEXTS), ", at most 4"),
    (payload(IMAGE, task="classify", labels=["a", "b", "c"], templates=["{}", "{}!"]), "6 texts"),
    (payload(IMAGE, texts=["ab " * 101]), "the texts have 303 characters, at most 300"),
    (payload(*[IMAGE] * 4, task="rank", texts=["ab " * 99]), "about 1300 bytes"),
    (payload(IMAGE, texts=["\ud800"]), "a text is not Unicode"),
    (payload(IMAGE, texts=["x" * 65]), "has 65 characters without a space, at most 64"),
    (payload(IMAGE, {"image": "../red.png"}, texts=TEXTS), "row 1: image '../red.png'"),
    (payload(IMAGE, {"image": NOISE}, texts=TEXTS), "has 6000 bytes, at most 5000"),
    (payload(IMAGE, {"image": HALF}, texts=TEXTS), "cannot be decoded"),
]


@pytest.mark.parametrize(("body", "reason"), REFUSED, ids=lambda part: str(part)[-40:])
def test_refusals_say_why(server: TestClient, body: dict[str, Any], reason: str) -> None:
    response = server.post("/invocations", content=json.dumps(body), headers=JSON)
    assert response.status_code == 400
    assert reason in response.json()["message"].replace("...'", "...")
    assert len(response.text) < 400, "images are not sent back"


def test_equal_images_count_once(server: TestClient) -> None:
    rows = [{"image": WIDE[0]}] * 4
    assert len(answers(server, payload(*rows, texts=TEXTS))) == 4


def test_threads_do_not_mix_their_answers(server: TestClient) -> None:
    asked = [
        payload(ROWS[k % 4], task="rank", texts=[f"{word} {k}" for word in TEXTS])
        for k in range(24)
    ]
    alone = [answers(server, body) for body in asked]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(lambda body: answers(server, body), asked))
    for one, other in zip(alone, together, strict=True):
        assert one[0]["texts"] == other[0]["texts"]
        assert one[0]["similarities"] == pytest.approx(other[0]["similarities"], abs=1e-6)


@pytest.fixture(scope="module")
def client(loaded: LoadedModel) -> TestClient:
    """`compo-pipeline serve` with small limits."""
    limits = ServingLimits(**LIMITS)
    return serving_client(loaded, ServingSettings(body=50_000, limits=limits))


def test_the_limits_of_both_servers_are_the_same() -> None:
    assert RequestLimits(**asdict(ServingLimits())) == RequestLimits()


def test_health_and_version(client: TestClient, loaded: LoadedModel) -> None:
    assert client.get("/ping").status_code == client.get("/health").status_code == 200
    told = client.get("/version").json()
    expected = ("toy-clip", 3, loaded.fingerprint, __version__)
    assert tuple(told[name] for name in ("model", "version", "fingerprint", "program")) == expected


@pytest.mark.parametrize("cell", [["a", "b"], [], {"a": 1}, None, 1])
def test_a_cell_that_is_no_text_is_refused(client: TestClient, cell: Any) -> None:
    rows = [{"image": cell, "text": "a cat"}]
    response = client.post("/invocations", json={"dataframe_records": rows})
    assert response.status_code == 400
    assert f"row 0: image is {cell}, expected base64" in response.json()["message"]


def test_a_form_with_files_is_told_how_images_are_sent(client: TestClient) -> None:
    files = {"image": ("cat.png", base64.b64decode(IMAGES[0]), "image/png")}
    response = client.post("/invocations", files=files)
    assert response.status_code == 415
    assert "expected application/json or text/csv" in response.json()["message"]
    assert "an image as base64" in response.json()["message"]


def test_a_large_body_is_refused(client: TestClient) -> None:
    def parts() -> Iterator[bytes]:
        for _ in range(10):
            yield b"x" * 20_000

    response = client.post("/invocations", content=b"x" * 50_001, headers=JSON)
    assert response.status_code == 413 and "50000 bytes" in response.json()["message"]
    assert client.post("/invocations", content=parts(), headers=JSON).status_code == 413


@pytest.fixture(scope="module")
def live(loaded: LoadedModel) -> Iterator[tuple[str, int]]:
    """The address of `compo-pipeline serve` with small limits, in a thread."""
    settings = ServingSettings(body=50_000, limits=ServingLimits(**LIMITS))
    options = serving.server_options(settings)
    application = serving.build(deployed(loaded, settings))
    server = uvicorn.Server(uvicorn.Config(application, port=0, **options))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()
    server.should_exit = True
    thread.join()


@pytest.mark.parametrize("header", ["close", "keep-alive"])
def test_whoever_writes_a_large_body_to_its_end_gets_the_answer(
    live: tuple[str, int], header: str
) -> None:
    connection = http.client.HTTPConnection(*live, timeout=60)
    headers = {**JSON, "content-length": "30000000", "connection": header}
    connection.request("POST", "/invocations", iter([b"x" * 100_000] * 300), headers)
    response = connection.getresponse()
    assert response.status == 413 and b"50000 bytes" in response.read()
    if header == "keep-alive":
        connection.request("GET", "/ping")
        assert connection.getresponse().status == 200
    connection.close()


def test_a_long_header_is_not_read_to_its_end(live: tuple[str, int]) -> None:
    def ask(header: int) -> bytes:
        with socket.create_connection(live, timeout=60) as connection:
            connection.sendall(b"GET /ping HTTP/1.1\r\nhost: x\r\nx: ")
            for _ in range(header // 50_000):
                connection.sendall(b"a" * 50_000)
            connection.sendall(b"\r\n\r\n")
            return connection.recv(100)

    assert b" 200 " in ask(50_000)
    with pytest.raises(ConnectionError):
        ask(60_000_000)


def test_an_observer_cannot_fail_a_request(
    loaded: LoadedModel, caplog: pytest.LogCaptureFixture
) -> None:
    def fault(exchange: Exchange) -> None:
        raise RuntimeError("of an observer")

    seen: list[Exchange] = []
    observers = [fault, seen.append]
    client = TestClient(serving.build(deployed(loaded, ServingSettings()), observers))
    for body, status in ((payload(*ROWS, texts=TEXTS), 200), (payload(texts=TEXTS), 400)):
        assert client.post("/invocations", json=body).status_code == status
        exchange = seen.pop()
        assert exchange.status == status and (exchange.answered is None) == (status == 400)
    assert "of an observer" in caplog.text


def client_of_openai(client: TestClient) -> openai.OpenAI:
    """OpenAI's own client of a server in this process."""
    options: Any = {"base_url": "http://testserver/v1", "http_client": client}
    return openai.OpenAI(api_key="none", max_retries=0, **options)


@pytest.mark.parametrize("more", [{}, {"encoding_format": "float"}], ids=["base64", "float"])
def test_openais_client_gets_embeddings(loaded: LoadedModel, more: dict[str, Any]) -> None:
    seen: list[Exchange] = []
    server = TestClient(serving.build(deployed(loaded, ServingSettings()), [seen.append]))
    create = client_of_openai(server).embeddings.create
    u, t = embedded(loaded, PICTURES, TEXTS)
    texts = create(model="toy-clip", input=TEXTS, **more)
    uris = [f"data:image/png;base64,{image}" for image in IMAGES]
    images = create(model="toy-clip", input=uris, **more)
    single = create(model="toy-clip", input=TEXTS[1], **more)
    expected = [t, u, t[1:2]]
    for answer, vectors in zip((texts, images, single), expected, strict=True):
        found = torch.tensor([each.embedding for each in answer.data])
        torch.testing.assert_close(found, vectors, atol=1e-6, rtol=0)
        assert [each.index for each in answer.data] == [*range(len(vectors))]
        assert answer.model == "toy-clip"
    # Each is three or two words, between the tokens of begin and end.
    assert texts.usage.prompt_tokens == texts.usage.total_tokens == 5 + 4 + 5
    assert (images.usage.total_tokens, single.usage.total_tokens) == (0, 4)
    assert [(each.task, each.status) for each in seen] == [("embed", 200)] * 3
    assert seen[0].table is not None and seen[0].table["text"].tolist() == TEXTS
    assert samples(server)["compo_rows_total", "embed"] == 8


URI = f"data:image/png;base64,{IMAGES[0]}"
FAULTS: dict[str, tuple[type[openai.APIStatusError], dict[str, Any], str]] = {
    "another model": (openai.NotFoundError, {"model": "gpt"}, "no 'gpt', expected 'toy-clip'"),
    "token ids": (openai.BadRequestError, {"input": [1, 2]}, "input.0: Input should be a valid"),
    "nothing": (openai.BadRequestError, {"input": []}, "input: List should have at least 1"),
    "blank": (openai.BadRequestError, {"input": ["a", " "]}, "row 1: text is ' '"),
    "both": (openai.BadRequestError, {"input": ["a", URI]}, "input.1 is an image, input.0 is not"),
    "many": (openai.BadRequestError, {"input": ["a"] * 5}, "at most 4"),
    "a large image": (
        openai.BadRequestError,
        {"input": [f"data:image/png;base64,{NOISE}"]},
        "bytes, at most 5000",
    ),
    "half an image": (
        openai.BadRequestError,
        {"input": [f"data:;base64,{HALF}"]},
        "cannot be decoded",
    ),
    "dimensions": (openai.BadRequestError, {"dimensions": 8}, "dimensions: Extra inputs"),
    "a large body": (openai.APIStatusError, {"input": ["x" * 50_000]}, "50000 bytes"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_openais_client_is_told_why_it_gets_none(client: TestClient, fault: str) -> None:
    kind, changed, reason = FAULTS[fault]
    with pytest.raises(kind) as error:
        client_of_openai(client).embeddings.create(
            **{"model": "toy-clip", "input": "a cat", **changed}
        )
    assert reason in error.value.message
    assert error.value.type == "invalid_request_error" and error.value.request_id
    assert (error.value.code == "model_not_found") == (fault == "another model")


def test_an_answer_that_takes_too_long_ends(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded, refused = [], threading.Event()
    begun, ended, answer = threading.Event(), threading.Event(), serving._answer

    def slow(value: str, limits: RequestLimits) -> Image.Image:
        decoded.append(value)
        assert refused.wait(60)
        return Image.new("RGB", (40, 40))

    def watched(*given: Any) -> str:
        begun.set()
        try:
            return answer(*given)
        finally:
            ended.set()

    monkeypatch.setattr(model, "read_image", slow)
    monkeypatch.setattr(serving, "_answer", watched)
    limited = serving_client(loaded, ServingSettings(limits=ServingLimits(seconds=1)))
    response = limited.post("/invocations", json=payload(*ROWS, texts=TEXTS))
    assert (response.status_code, response.json()["error_code"]) == (504, "DEADLINE_EXCEEDED")
    refused.set()
    assert ended.wait(60) or not begun.is_set()
    assert len(decoded) <= 1, "the work ends too"


def test_a_fault_of_the_server_is_in_its_log_alone(
    server: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fault(*_: Any) -> None:
        raise RuntimeError(f"secret of {__file__}")

    monkeypatch.setattr(pandas, "factorize", fault)
    response = server.post("/invocations", json=payload(IMAGE, texts=TEXTS))
    assert response.status_code == 500
    assert "secret" in caplog.text and "secret" not in response.text
    assert len(response.json()["message"].splitlines()) == 1


def test_an_answer_and_the_log_have_the_same_id(
    client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    refused = client.post("/invocations", json={})
    assert refused.json()["request_id"] == refused.headers["x-request-id"]
    answered = client.post("/invocations", json=payload({"text": "x"}, task="embed"))
    for response in (refused, answered):
        assert f"request {response.headers['x-request-id']}: {response.status_code}" in caplog.text


def samples(client: TestClient) -> dict[tuple[str, ...], float]:
    """Values by name and labels, in the labels' order, as Prometheus' own parser reads them."""
    response = client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=")
    return {
        (sample.name, *(sample.labels[label] for label in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


def test_metrics_count_requests_rows_and_passes(loaded: LoadedModel) -> None:
    deployment = deployed(loaded, ServingSettings())
    client = TestClient(serving.build(deployment))
    good = payload({"text": "a cat"}, {"text": "a dog"}, task="embed")
    for _ in range(3):
        assert client.post("/invocations", json=good).status_code == 200
    unknown = payload({"text": "a cat"}, task="x" * 50)
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


def test_a_version_is_served_by_alias_number_or_uri(
    configure: Callable[[str], None],
    version_files: Callable[..., dict[str, str]],
    sealed: Callable[..., Any],
    tiny_clip: Path,
    loaded: LoadedModel,
    mlflow_project: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    free_port: Callable[[], int],
) -> None:
    configure("serve")
    source = tmp_path / "source"
    tags = version_files(loaded, source)
    registry = mlflow.MlflowClient()
    registry.create_registered_model("serve-clip")
    sealed(registry.create_model_version("serve-clip", str(source), tags=tags))
    registry.set_registered_model_alias("serve-clip", "champion", "1")
    answering, followed = [], []
    monkeypatch.setattr(uvicorn, "run", lambda app, **_: answering.append(TestClient(app)))
    monkeypatch.setattr(serving, "Follower", lambda *given: followed.append(given[3]))
    monkeypatch.chdir(mlflow_project)
    given = ServingSettings(), RegistrationSettings("serve-clip"), TrackingSettings()
    for model_uri, alias, version in (
        (None, None, None),
        (None, "champion", None),
        (None, None, 1),
        ("models:/serve-clip@champion", None, None),
        ("models:/serve-clip/1", None, None),
        (str(tiny_clip), None, None),
    ):
        serving.run(*given, model_uri, alias, version, "127.0.0.1", free_port())
        shown = answering[-1].get("/version").json()
        assert shown["fingerprint"] == loaded.fingerprint
        assert (shown["model"], shown["version"]) in {("serve-clip", 1), (tiny_clip.name, None)}
        assert str(tmp_path) not in str(shown)
    assert followed == ["champion"] * 3, "numbers and folders do not move"
    with pytest.raises(SettingsError, match="--model: 'runs:/1/model' is neither models:/"):
        serving.run(*given, "runs:/1/model", None, None, "127.0.0.1", free_port())
    registry.set_model_version_tag("serve-clip", "1", "fingerprint", "0" * 64)
    with pytest.raises(VersionError, match="registration.name: "):
        serving.run(*given, None, None, 1, "127.0.0.1", free_port())


NAMES = ("image", "text", "task", "texts", "labels", "templates", "columns", "data", "index", "red")
CELLS = st.one_of(
    st.sampled_from([*IMAGES[:2], WIDE[0], HALF, "", "red.png", "../red.png", "a {}", "embed"]),
    st.sampled_from(["classify", "rank", "score", "data:image/png;base64,", "\ud800", "\x1b[31m"]),
    *(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
)
VALUES = st.recursive(
    CELLS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)
ROW = st.fixed_dictionaries({}, optional={"image": CELLS, "text": CELLS, "other": VALUES})
STRINGS = st.lists(CELLS, max_size=3) | VALUES
PARAMS = st.fixed_dictionaries(
    {},
    optional={
        "task": st.sampled_from(["score", "embed", "rank", "classify"]) | VALUES,
        "texts": STRINGS,
        "labels": STRINGS,
        "templates": STRINGS,
    },
)
SPLIT = st.fixed_dictionaries(
    {"columns": st.lists(st.sampled_from(NAMES), max_size=3) | VALUES},
    optional={"data": st.lists(st.lists(CELLS, max_size=3), max_size=5) | VALUES},
)
FORMS = ("dataframe_records", "dataframe_split", "inputs", "instances", "messages", "prompt")
TABLE = st.lists(ROW, max_size=5) | SPLIT | VALUES
CONTENT = (
    VALUES
    | st.fixed_dictionaries({"dataframe_records": st.lists(ROW, max_size=5), "params": PARAMS})
    | st.dictionaries(st.sampled_from(FORMS), TABLE, min_size=1, max_size=2)
)
CSV = st.lists(st.lists(CELLS.map(str), max_size=3).map(",".join), max_size=5).map("\n".join)
EMBEDDINGS = st.fixed_dictionaries(
    {"model": st.just("toy-clip") | VALUES, "input": CELLS | STRINGS},
    optional={"encoding_format": st.just("float") | VALUES, "dimensions": VALUES},
)
BODIES = (
    (CONTENT | EMBEDDINGS).map(json.dumps).map(str.encode)
    | CSV.map(lambda lines: f"image,text\n{lines}".encode(errors="replace"))
    | st.binary(max_size=60)
    | st.integers(1, 25_000).map(lambda depth: b"[" * depth)
)
KINDS = st.sampled_from(
    [*["application/json"] * 6, "text/csv", "text/csv; charset=latin-1", "APPLICATION/JSON; x"]
) | st.sampled_from(["application/vnd.apache.parquet", "", ";", "text/plain", "json"])


@pytest.mark.parametrize("cases", [150, pytest.param(10_000, marks=pytest.mark.slow)])
def test_any_request_is_answered_or_refused_in_a_line(
    client: TestClient, count_case: Callable[[], int], cases: int
) -> None:
    @settings(max_examples=cases)
    @given(body=BODIES, kind=KINDS)
    def fuzz(body: bytes, kind: str) -> None:
        count_case()
        for path, key in (("/invocations", "predictions"), ("/v1/embeddings", "data")):
            response = client.post(path, content=body, headers={"content-type": kind})
            answer = response.json()
            if response.status_code == 200:
                assert isinstance(answer[key], list)
                continue
            assert 400 <= response.status_code < 500, response.text
            reason = answer.get("error", answer)["message"]
            assert reason.isprintable() and 0 < len(reason) <= 500
            for internal in ("Traceback", "site-packages", str(Path(serving.__file__).parents[2])):
                assert internal not in response.text

    fuzz()
