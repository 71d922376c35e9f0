"""A registry on a server: MLflow on PostgreSQL, artefacts in a store that speaks S3."""

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import mlflow
import pytest
import torch
from tests.registry.asked import aliases_of
from tests.waiting import until

from compo_pipeline.core.records import ScoredItem
from compo_pipeline.data.settings import DataSettings
from compo_pipeline.evaluation.evaluate import Comparison, ScoresFingerprint
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.models.loading import export, load
from compo_pipeline.registry import runs as tracking
from compo_pipeline.registry.evidence import Evidence, write_evidence
from compo_pipeline.registry.gate import fingerprint
from compo_pipeline.registry.promotion import PromotionError, promote, roll_back
from compo_pipeline.registry.reference import write_reference
from compo_pipeline.registry.registration import Registered, export_with_card, register
from compo_pipeline.registry.settings import RegistrationSettings, SigningSettings
from compo_pipeline.registry.tracking_settings import TrackingSettings

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("promoting.py")
RUN = {"method": "clic", "variant": "default", "seed": 0}
MANIFEST: dict[str, Any] = {"data_hash": "d" * 64, "count": 3, "files": {}}
DATA = DataSettings(root=Path("data"), format="table", splits={})
PROMOTING = SimpleNamespace(**runpy.run_path(str(SCRIPT)))
SETTINGS = PROMOTING.SETTINGS
CLEAN = PROMOTING.CLEAN
SCORED = ScoresFingerprint("sugar_crepe_pp", "i", "m", "c", {"device": "cpu"})
ITEMS = [ScoredItem("sugar_crepe_pp", "swap_att", str(k), ()) for k in range(PROMOTING.ITEMS)]


class Server(NamedTuple):
    """A tracking server, and what a client needs that goes to its artefacts itself."""

    uri: str
    credentials: Mapping[str, str]


@pytest.fixture(scope="module")
def server(
    postgres: str,
    listening: Callable[..., AbstractContextManager[None]],
    free_port: Callable[[], int],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Server]:
    """A tracking server that serves its artefacts, which lie in a bucket."""
    boto3 = pytest.importorskip("boto3")
    pytest.importorskip("moto.server")
    s3, uri = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    credentials = {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "MLFLOW_S3_ENDPOINT_URL": s3,
    }
    # Its queue of jobs would take processes of its own.
    jobs = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    environment = {**without_mlflow(), **credentials, **jobs}
    folders = [tmp_path_factory.mktemp(name) for name in ("s3", "mlflow")]
    store = ["moto.server", "-H", "127.0.0.1", "-p", s3.rpartition(":")[2]]
    with listening(store, f"{s3}/moto-api/", folders[0], environment):
        keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
        place = {"endpoint_url": s3, "region_name": "us-east-1"}
        boto3.client("s3", **place, **keys).create_bucket(Bucket="artefacts")
        tracked = ["mlflow", "server", "--host", "127.0.0.1", "--port", uri.rpartition(":")[2]]
        tracked += ["--backend-store-uri", postgres, "--workers", "1"]
        tracked += ["--artifacts-destination", "s3://artefacts/served"]
        with listening(tracked, f"{uri}/health", folders[1], environment):
            yield Server(uri, credentials)


@pytest.fixture
def client(
    server: Server, mlflow_project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[mlflow.MlflowClient]:
    """This process logs to the server, with no more than its address."""
    for name in server.credentials:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    tracking.configure(TrackingSettings(uri=server.uri), tmp_path)
    yield mlflow.MlflowClient()
    assert not (tmp_path / "mlruns").exists()
    tracking.configure(TrackingSettings(), mlflow_project)


def train(base: Path, scale: float, checkpoint: Path) -> None:
    """Write what a training might have made of a model."""
    loaded = load(base)
    note = {"training": {"fingerprint": {"model": loaded.fingerprint, "seed": 7}}}
    with torch.no_grad():
        loaded.model.text_projection.mul_(scale)
    export(loaded, checkpoint, metadata=note)


# Registers a model under a name: the tiny one at some scale, with so many items right.
Make = Callable[[str, float, int], Registered]


@pytest.fixture
def make(tiny_clip: Path, comparison: Comparison, tmp_path: Path) -> Make:
    """What a training, its evaluation and its registration leave in the store of the moment."""

    def made(name: str, scale: float, right: int) -> Registered:
        base = load(tiny_clip).fingerprint
        checkpoint = tmp_path / f"scaled by {scale}"
        if not checkpoint.exists():
            train(tiny_clip, scale, checkpoint)
        settings = RegistrationSettings(name=name)
        run_id = tracking.open_run("made", {})
        run = {**RUN, "run_id": run_id}
        folder = tmp_path / "export"
        weights = {"fine_tuned": load(checkpoint).fingerprint, "base": base}
        models = {
            role: replace(model, fingerprint=weights[role])
            for role, model in comparison.models.items()
        }
        scored = replace(comparison, models=models, scored=(SCORED,), overlaps=(CLEAN,))
        export_with_card(checkpoint, folder, run, MANIFEST, (), scored, settings)
        scores = {"fine_tuned": PROMOTING.made_up(right), "base": PROMOTING.made_up(20)}
        write_evidence(folder, Evidence.from_comparison(scored), scores, ITEMS)
        write_reference(folder, load(folder), [], tmp_path, 0, EvaluationSettings())
        with tracking.adopt(run_id) as record:
            return register(folder, record, MANIFEST, comparison, str(tmp_path), settings)

    return made


def test_the_gate_decides_and_a_rollback_restores(client: mlflow.MlflowClient, make: Make) -> None:
    name = "decided"

    def outcome(scale: float, right: int) -> str:
        make(name, scale, right)
        return promote(name, "challenger", SETTINGS, SigningSettings()).outcome

    assert outcome(1.5, 30) == "promoted", "held against its base"
    assert outcome(2.0, 20) == "refused"
    assert aliases_of(name) == {"challenger": 2, "champion": 1}
    assert outcome(3.0, 40) == "promoted"
    assert aliases_of(name) == {"challenger": 3, "champion": 3, "previous": 1}
    tags = [client.get_model_version(name, str(n)).tags for n in (1, 2, 3)]
    assert [each["promotion.outcome"] for each in tags] == ["promoted", "refused", "promoted"]
    assert tags[2]["promotion.gate"] == fingerprint(PROMOTING.GATE)
    assert roll_back(name, SETTINGS, SigningSettings()).outcome == "rolled back"
    assert aliases_of(name) == {"challenger": 3, "champion": 1}
    with pytest.raises(PromotionError, match="nothing to roll back"):
        roll_back(name, SETTINGS, SigningSettings())


def test_a_contest_between_two_processes_is_reported(
    server: Server, client: mlflow.MlflowClient, tmp_path: Path
) -> None:
    name = "contested"
    client.create_registered_model(name)
    for alias in ("champion", "first", "second"):
        run = client.get_run(tracking.open_run("made", {}))
        made = client.create_model_version(name, run.info.artifact_uri, run.info.run_id)
        client.set_registered_model_alias(name, alias, made.version)
    processes = {
        alias: subprocess.Popen(
            [sys.executable, str(SCRIPT), server.uri, name, alias, str(tmp_path)],
            env=without_mlflow(),
            stdout=subprocess.PIPE,
            text=True,
        )
        for alias in ("first", "second")
    }

    def decision(alias: str) -> tuple[int, Any]:
        """What a process decides that may go on from its comparison."""
        (tmp_path / f"{alias} goes on").touch()
        told = processes[alias].communicate(timeout=420)[0]
        return processes[alias].returncode, json.loads(told.splitlines()[-1]) if told else None

    try:
        # Both have met the first champion, and compare.
        until(lambda: all((tmp_path / f"{alias} compares").exists() for alias in processes))
        status, second = decision("second")
        assert (status, second["outcome"], second["previous"]) == (0, "promoted", 1)
        status, first = decision("first")
    finally:
        for process in processes.values():
            process.kill()
    assert (status, first) == (1, None)
    assert "promotion.outcome" not in client.get_model_version(name, "2").tags
    assert aliases_of(name) == {"first": 2, "second": 3, "champion": 3, "previous": 1}


def without_mlflow() -> dict[str, str]:
    """This process's environment; MLflow notes its store there."""
    return {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
