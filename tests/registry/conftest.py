"""Experiments of the tests' MLflow store, what an evaluation found, and a served model."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from compo_pipeline.evaluation.audit import Audit
from compo_pipeline.evaluation.comparison import compare
from compo_pipeline.evaluation.contamination import Overlap
from compo_pipeline.evaluation.evaluate import Comparison
from compo_pipeline.evaluation.settings import Bootstrap
from compo_pipeline.records import Score
from compo_pipeline.registry import tracking


@pytest.fixture
def configure(mlflow_project: Path) -> Callable[[str], None]:
    """Switch to an experiment of the store."""

    def switch(experiment: str) -> None:
        settings = tracking.TrackingSettings(experiment=experiment)
        tracking.configure(settings, mlflow_project)

    return switch


@pytest.fixture(scope="session")
def comparison() -> Comparison:
    """A method that gains in retrieval image to text and loses text to image."""
    right = {("base", "i2t_r1"): 20, ("clic", "i2t_r1"): 38}
    right |= {("base", "t2i_r1"): 38, ("clic", "t2i_r1"): 20}
    scores = [
        Score(model, "retrieval", "raw", metric, str(item), f"{item}.png", (), item < count, None)
        for (model, metric), count in right.items()
        for item in range(40)
    ]
    models = {"base": "base", "fine_tuned": "clic"}
    keys = ("retrieval", "i2t_r1", "raw"), ("retrieval", "t2i_r1", "raw")
    rows = compare([scores], models, Bootstrap(resamples=100), {keys[0]: 0.1, keys[1]: 0.45})
    return Comparison(
        dataset="toy",
        models=models,
        weights=models,
        verdict=(),
        resamples=100,
        rows=tuple(rows),
        audits=(Audit("retrieval", "raw", 40, 2, {"missing": 2}, 80, 0, 0, ()),),
        overlaps=(Overlap("retrieval", "raw", 40, 1, 0, None, 40, 3),),
    )


# Answers a request's body with the status and the parsed answer.
Post = Callable[[dict[str, Any]], tuple[int, dict[str, Any]]]


@pytest.fixture(scope="session")
def serve() -> Callable[..., AbstractContextManager[Post]]:
    """`with serve(model, folder, environment) as post:` as `mlflow models serve` does it."""

    @contextmanager
    def served(model: str, folder: Path, environment: Mapping[str, str]) -> Iterator[Post]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        command = [str(Path(sys.executable).with_name("mlflow")), "models", "serve", "-m", model]
        command += ["--env-manager", "local", "-p", str(port)]
        # MLflow starts its server by name.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        log = folder / "served.log"
        with log.open("w") as output:
            # A session of its own: the command starts the server as another process, and both end.
            process = subprocess.Popen(
                command,
                env={**environment, "PATH": path},
                stdout=output,
                stderr=output,
                cwd=folder,
                start_new_session=True,
            )
        try:
            _wait(port, process, log)
            yield lambda body: _post(port, body)
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()

    return served


def _wait(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(300):
        assert process.poll() is None, log.read_text()
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/ping", timeout=5)
        except OSError:
            time.sleep(1)
        else:
            return
    raise AssertionError(log.read_text())


def _post(port: int, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/invocations",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
