"""The request log of `compo-pipeline serve`: what is written, and what is dropped."""

import base64
import errno
import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import uvicorn
from fastapi.testclient import TestClient
from PIL import Image
from prometheus_client import CollectorRegistry
from prometheus_client import Counter as Metric
from tests.registry.asked import deployed, embedded, encoded
from tests.waiting import until

from compo_pipeline.core.settings import SettingsError
from compo_pipeline.models.loading import LoadedModel, load
from compo_pipeline.registry.settings import RegistrationSettings
from compo_pipeline.registry.tracking_settings import TrackingSettings
from compo_pipeline.serving import request_log, requests
from compo_pipeline.serving import server as serving
from compo_pipeline.serving.request_log import RequestLog
from compo_pipeline.serving.requests import read_requests
from compo_pipeline.serving.settings import RequestLogSettings, ServingSettings

TEXTS = ["a red square", "Two cats, and two dogs.", "a blue sphere"]
WORDS = frozenset(["a", "red", "two", "cats"])
ALWAYS = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


PICTURES = [Image.new("RGB", (40, 30), "red"), Image.new("RGB", (50, 30), "blue")]
CELLS = [*map(encoded, PICTURES)]
PHOTOS = [*map(base64.b64decode, CELLS)]
ROWS = [{"image": cell} for cell in CELLS]
ASKED = {"dataframe_records": [{"text": "a"}], "params": {"task": "embed"}}


@pytest.fixture(scope="module")
def loaded(tiny_clip: Path) -> LoadedModel:
    return load(tiny_clip)


def counter() -> Metric:
    return Metric("dropped", "rows", ["reason"], registry=CollectorRegistry())


def dropped(log: RequestLog) -> dict[str, float]:
    """Rows that were not written, by reason."""
    (found,) = log._dropped.collect()
    return {
        each.labels["reason"]: each.value for each in found.samples if each.name.endswith("_total")
    }


class Logging:
    """A server with a request log, in this process."""

    def __init__(self, loaded: LoadedModel, folder: Path, **settings: Any) -> None:
        more = {"flush_seconds": 0.05, **settings}
        self.folder = folder
        self.log = RequestLog(RequestLogSettings(folder, **more), folder, counter())
        root = ServingSettings(image_root=folder.parent)
        deployment = deployed(loaded, root, words=WORDS)
        self.client = TestClient(serving.build(deployment, [self.log]))

    def ask(self, *rows: dict[str, Any], **params: Any) -> str:
        """The id of an answered request."""
        body = {"dataframe_records": list(rows), "params": params}
        response = self.client.post("/invocations", json=body)
        assert response.status_code == 200, response.text
        return response.headers["x-request-id"]

    def rows(self) -> list[dict[str, Any]]:
        """All rows of the log, once the writer has ended."""
        self.log.close()
        return logged(self.folder)


def logged(folder: Path) -> list[dict[str, Any]]:
    return [row for each in read_requests(folder, *ALWAYS) for row in each.to_pylist()]


@pytest.fixture
def served(loaded: LoadedModel, tmp_path: Path) -> Iterator[Callable[..., Logging]]:
    """Makes servers with a log each, in one folder."""
    made: list[Logging] = []

    def make(**settings: Any) -> Logging:
        made.append(Logging(loaded, tmp_path / "log", **settings))
        return made[-1]

    yield make
    for each in made:
        each.log.close()


def test_a_row_says_what_was_asked_and_answered(
    served: Callable[..., Logging], loaded: LoadedModel
) -> None:
    server, before = served(), datetime.now(UTC)
    name = server.ask(*ROWS, task="rank", texts=TEXTS)
    found = server.rows()
    u, t = embedded(loaded, PICTURES, TEXTS)
    cosines = (u @ t.T).numpy()
    assert [row["row"] for row in found] == [0, 1]
    for k, row in enumerate(found):
        best, second, _ = order = np.argsort(-cosines[k]).tolist()
        text = TEXTS[best]
        # Positions up to the end of the text, which has the largest id.
        tokens = int(loaded.tokenize([text])[0].argmax()) + 1
        words = text.lower().replace(",", "").replace(".", "").split()
        expected = {
            "request": name,
            "model": "toy-clip",
            "version": 3,
            "task": "rank",
            "fingerprint": loaded.fingerprint,
            "width": [40, 50][k],
            "height": 30,
            "image_hash": hashlib.sha256(PHOTOS[k]).hexdigest()[:16],
            "bytes": len(PHOTOS[k]),
            "candidates": 3,
            "order": order,
            "tokens": tokens,
            "words": len(text.split()),
            "unknown_words": sum(w not in WORDS for w in words),
            "caption": None,
            "image_bytes": None,
        }
        assert {column: row[column] for column in expected} == expected
        assert row["cosine"] == pytest.approx(cosines[k, best], abs=1e-6)
        assert row["margin"] == pytest.approx(cosines[k, best] - cosines[k, second], abs=1e-6)
        assert row["image"] == pytest.approx(u[k].numpy(), abs=1e-3)
        assert row["text"] == pytest.approx(t[best].numpy(), abs=1e-3)
        assert before <= row["time"] <= datetime.now(UTC) and 0 < row["latency"] < 60


def test_each_task_fills_what_it_has(served: Callable[..., Logging], loaded: LoadedModel) -> None:
    server = served(content=["texts", "images"])
    pair = {"image": CELLS[0], "text": TEXTS[0]}
    ids = {
        "pair": server.ask(pair),
        "image": server.ask(ROWS[0], task="embed"),
        "text": server.ask({"text": TEXTS[1]}, task="embed"),
        "one": server.ask(ROWS[0], texts=TEXTS[:1]),
        "labels": server.ask(
            ROWS[0], task="classify", labels=["cat", "dog"], templates=["a {}", "{}s"]
        ),
        "many": server.ask(ROWS[0], texts=[f"{number} cups" for number in range(40)]),
    }
    found = {row["request"]: row for row in server.rows()}
    rows = {name: found[each] for name, each in ids.items()}
    filled = {
        name: {column for column, value in row.items() if value is not None}
        for name, row in rows.items()
    }
    of_image = {"image_hash", "width", "height", "bytes", "image", "image_bytes"}
    of_text = {"text", "tokens", "words", "unknown_words", "caption"}
    every = set(requests.REQUESTS.names) - of_image - of_text
    every -= {"candidates", "cosine", "margin", "order"}
    compared = {"candidates", "cosine", "order"}
    assert filled == {
        "pair": every | of_image | of_text | {"cosine"},
        "image": every | of_image,
        "text": every | of_text,
        "one": every | of_image | of_text | compared,
        "labels": every | of_image | of_text | compared | {"margin"},
        "many": every | of_image | of_text | compared | {"margin"},
    }
    assert (rows["many"]["candidates"], len(rows["many"]["order"])) == (40, 32)
    assert rows["pair"]["image_bytes"] == PHOTOS[0] and rows["pair"]["caption"] == TEXTS[0]
    _, t = embedded(loaded, PICTURES, ["a cat", "cats", "a dog", "dogs"])
    means = torch.nn.functional.normalize(t.reshape(2, 2, -1).mean(dim=1), dim=-1)
    best = ["cat", "dog"].index(rows["labels"]["caption"])
    assert rows["labels"]["order"][0] == best
    assert rows["labels"]["text"] == pytest.approx(means[best].numpy(), abs=1e-3)


def test_an_image_of_a_path_is_hashed_as_one_that_is_sent(
    served: Callable[..., Logging], tmp_path: Path
) -> None:
    server = served()
    (tmp_path / "red.png").write_bytes(PHOTOS[0])
    server.ask({"image": "red.png"}, *ROWS, {"image": "red.png"}, task="embed")
    hashes = [row["image_hash"] for row in server.rows()]
    assert hashes[0] == hashes[1] == hashes[3] != hashes[2]


def test_a_share_of_the_requests_is_logged(served: Callable[..., Logging]) -> None:
    """With p = 0.25 and 80 requests, 1 to 39 are nearly 5 deviations on either side of 20."""
    server = served(share=0.25)
    for _ in range(80):
        server.ask({"text": "a"}, {"text": "b"}, task="embed")
    found = Counter(row["request"] for row in server.rows())
    assert 0 < len(found) < 40 and set(found.values()) == {2}


def test_a_full_queue_drops_and_counts(
    served: Callable[..., Logging], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_log, "_QUEUE", 5000)
    server, writing, go = served(), threading.Event(), threading.Event()
    write = requests.write_requests

    def slow(*given: Any) -> None:
        writing.set()
        go.wait(300)
        write(*given)

    monkeypatch.setattr(request_log, "write_requests", slow)
    server.ask({"text": "first"}, task="embed")
    assert writing.wait(60)
    for _ in range(4):
        server.ask({"text": "a"}, {"text": "b"}, task="embed")
    assert server.log.written == 0, "no request waits for the disk"
    assert dropped(server.log) == {"queue full": 4}
    go.set()
    assert len(server.rows()) == server.log.written == 5


@pytest.mark.parametrize(
    ("number", "reason"), [(errno.ENOSPC, "disk full"), (errno.EACCES, os.strerror(errno.EACCES))]
)
def test_what_cannot_be_written_is_counted_until_the_disk_works_again(
    served: Callable[..., Logging],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: int,
    reason: str,
) -> None:
    server = served()

    def broken(self: Path, target: Path) -> None:
        raise OSError(number, os.strerror(number), str(self))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", broken)
        for count in (1, 2, 3):
            server.ask({"text": "a"}, task="embed")
            until(lambda count=count: dropped(server.log) == {reason: count})  # type: ignore[misc]
        assert not list(server.folder.rglob("*.parquet"))
    server.ask({"text": "b"}, task="embed")
    (row,) = server.rows()
    assert row["task"] == "embed" and dropped(server.log) == {reason: 3}
    lines = [line for line in caplog.messages if line.startswith("request log")]
    assert len(lines) == 1, "one line a minute at most"
    assert reason in lines[0]


def test_a_folder_that_cannot_be_made_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file" / "log", tmp_path / "file"):
        with pytest.raises(SettingsError, match=r"^serving\.log\.folder: "):
            RequestLog(RequestLogSettings(folder), folder, counter())


def sizes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_two_servers_share_a_folder_and_its_bound(served: Callable[..., Logging]) -> None:
    most = 60_000
    pair = [served(max_bytes=most, flush_seconds=0.01) for _ in range(2)]
    foreign = pair[0].folder / "notes.txt"
    foreign.write_text("not of the log")
    last = ""
    for number in range(30):
        for server in pair:
            last = server.ask({"text": f"{number}"}, task="embed")
            until(lambda server=server, n=number: server.log.written > n)  # type: ignore[misc]
    rows = [*pair[0].rows(), *pair[1].rows()]
    assert last in {row["request"] for row in rows}
    assert 0 < sizes(pair[0].folder) - foreign.stat().st_size <= most
    assert len({path.name.partition("-")[0] for path in pair[0].folder.rglob("*.parquet")}) == 2
    assert foreign.read_text() == "not of the log"
    assert not dropped(pair[0].log) and not dropped(pair[1].log)


def test_old_files_and_leftovers_of_killed_servers_are_deleted(
    served: Callable[..., Logging],
) -> None:
    server = served(max_age_days=2)
    now = datetime.now(UTC)
    old, new = (
        server.folder / requests.hour_folder(now - timedelta(days=days)) / "other-000000.parquet"
        for days in (3, 1)
    )
    leftover = old.with_name(".other-000001.parquet.0") / "other-000001.parquet"
    for path in (old, new, leftover):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    for path in (old, leftover, new):
        days = 1 if path == new else 3
        os.utime(path, (time.time() - days * 86_400,) * 2)
    server.ask({"text": "a"}, task="embed")
    until(lambda: not old.exists() and not leftover.exists())
    server.log.close()
    assert new.exists() and not old.parent.parent.exists()


SERVER = """
import sys
from pathlib import Path
from fastapi.testclient import TestClient
from compo_pipeline.models.loading import load
from compo_pipeline.serving import server
from compo_pipeline.serving.deployment import Deployment
from compo_pipeline.serving.exchange import Served
from compo_pipeline.serving.request_log import RequestLog
from compo_pipeline.serving.settings import RequestLogSettings, ServingSettings
model, folder = map(Path, sys.argv[1:])
served = Served("toy", 3, "f" * 16)
deployment = Deployment(load(model), served, ServingSettings())
settings = RequestLogSettings(folder, flush_seconds=0.2)
log = RequestLog(settings, folder, deployment.metrics.dropped)
client = TestClient(server.build(deployment, [log]))
while True:
    body = {"dataframe_records": [{"text": "a"}], "params": {"task": "embed"}}
    request = client.post("/invocations", json=body).headers["x-request-id"]
    print(request, log.written, flush=True)
"""


def test_a_kill_loses_the_rows_since_the_last_file_alone(tiny_clip: Path, tmp_path: Path) -> None:
    folder, printed = tmp_path / "log", tmp_path / "printed"
    command = [sys.executable, "-c", SERVER, str(tiny_clip), str(folder)]
    with printed.open("w") as output, subprocess.Popen(command, stdout=output) as process:
        try:
            until(lambda: len(list(folder.rglob("*.parquet"))) >= 10)
        finally:
            process.send_signal(signal.SIGKILL)
    # Requests in their order, and how many of them were in files when each was answered.
    lines = [line.split() for line in printed.read_text().splitlines()]
    rows = sorted(logged(folder), key=lambda row: row["time"])
    assert len(rows) >= int(lines[-1][1]) > 0
    # The last row may be of a request that was answered, and killed before it was printed.
    assert [row["request"] for row in rows][: len(lines)] == [
        request for request, _ in lines[: len(rows)]
    ]
    assert len(rows) <= len(lines) + 1


def test_the_command_writes_what_the_settings_name(
    tiny_clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_port: Callable[[], int]
) -> None:
    def answer(app: Any, **_: Any) -> None:
        with TestClient(app) as client:
            client.post("/invocations", json=ASKED)

    monkeypatch.setattr(uvicorn, "run", answer)
    settings = ServingSettings(log=RequestLogSettings(tmp_path / "log"))
    given = settings, RegistrationSettings("toy"), TrackingSettings()
    serving.run(*given, str(tiny_clip), None, None, "127.0.0.1", free_port())
    (row,) = logged(tmp_path / "log")
    assert (row["model"], row["version"], row["unknown_words"]) == (tiny_clip.name, None, None)
