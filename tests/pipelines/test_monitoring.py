"""The pipeline of monitoring as Kedro runs it, on a registered version and a request log."""

import hashlib
import io
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from kedro.framework.cli.cli import KedroCLI
from kedro.io import DataCatalog, MemoryDataset
from kedro.runner import SequentialRunner
from mlflow.exceptions import MlflowException
from PIL import Image

from compo_pipeline.core.provenance import CommandOptions, Site
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.data.catalog import JsonDataset, PageDataset
from compo_pipeline.models.loading import load
from compo_pipeline.pipeline_registry import register_pipelines
from compo_pipeline.registry import runs as tracking
from compo_pipeline.registry.reference import REFERENCE, WORDS
from compo_pipeline.registry.settings import RegistrationSettings
from compo_pipeline.registry.tracking_settings import TrackingSettings
from compo_pipeline.serving.monitoring.report import ALARM_STATUS, Alarm, check
from compo_pipeline.serving.monitoring.settings import MonitoringSettings
from compo_pipeline.serving.requests import REQUESTS, hour_folder, write_requests

NAME, WIDTH, ROWS, REQUESTED = "monitored", 8, 120, 60
TEXTS = ("a red dog", "a blue cat on the grass")
NEW = "a turquoise gyrocopter"
SETTINGS = MonitoringSettings()


def vectors(count: int, seed: int, shift: float = 0.0) -> Any:
    drawn = np.random.default_rng(seed).standard_normal((count, WIDTH)) + 2 * np.eye(WIDTH)[0]
    drawn += shift * np.eye(WIDTH)[1]
    return list((drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float16))


def jpeg(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (24, 24, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG")
    return buffer.getvalue()


@pytest.fixture
def version(
    tiny_model: Callable[..., Path],
    version_files: Callable[..., dict[str, str]],
    sealed: Callable[..., Any],
    mlflow_project: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Any:
    """Registers a champion with a reference of so many rows; returns its fingerprint."""

    def register(rows: int = ROWS, project: Path = mlflow_project) -> str:
        monkeypatch.chdir(project)
        tracking.configure(TrackingSettings(), project)
        client = mlflow.MlflowClient()
        client.create_registered_model(NAME)
        folder = tmp_path / "version"
        tags = version_files(load(tiny_model(seed=6)), folder)
        (evidence,) = folder.glob("artifacts/*/evidence")
        sample = {"image": vectors(rows, 0), "text": vectors(rows, 1), "tokens": [5] * rows}
        sample |= {"words": [3] * rows}
        sample["unknown_words"] = [0] * rows
        pq.write_table(pa.table(sample, schema=REFERENCE), evidence / "reference.parquet")
        words = sorted({word for text in TEXTS for word in text.split()})
        counts = {"word": words, "count": [10] * len(words)}
        pq.write_table(pa.table(counts, schema=WORDS), evidence / "words.parquet")
        run_id = tracking.open_run("monitored", {})
        made = sealed(client.create_model_version(NAME, str(folder), run_id, tags=tags))
        client.set_registered_model_alias(NAME, "champion", made.version)
        return tags["fingerprint"]

    yield register
    tracking.configure(TrackingSettings(), mlflow_project)
    with suppress(MlflowException):  # of a store of its own
        mlflow.MlflowClient().delete_registered_model(NAME)


def write_log(folder: Path, fingerprint: str, shift: float = 0.0, content: bool = True) -> None:
    time = datetime.now(UTC) - timedelta(minutes=5)
    images = [jpeg(k) for k in range(REQUESTED)]
    rows = [
        {
            "request": f"r{k}", "row": 0, "time": time, "model": NAME, "version": 1,
            "fingerprint": fingerprint, "task": "score", "latency": 0.1,
            "image_hash": hashlib.sha256(images[k]).hexdigest()[:16], "image": image, "text": text,
            "candidates": 1, "tokens": 5, "words": 3, "unknown_words": 0,
            "caption": (NEW if shift and k % 2 else TEXTS[k % 2]) if content else None,
            "image_bytes": images[k] if content else None,
        }
        for k, (image, text) in enumerate(
            zip(vectors(REQUESTED, 2, shift), vectors(REQUESTED, 3), strict=True)
        )
    ]  # fmt: skip
    table = pa.Table.from_pylist(rows, schema=REQUESTS)
    write_requests(folder / hour_folder(time) / "a-0.parquet", table)


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Runs the pipeline; returns the stored report."""

    def start(folder: Path | None, **settings: Any) -> dict[str, Any]:
        report = tmp_path / "report"
        site = Site(CommandOptions("toy"), {"monitoring_report": str(report / "monitoring.html")})
        inputs: dict[str, Any] = {
            "params:monitoring": replace(SETTINGS, **settings),
            "params:registration": RegistrationSettings(NAME),
            "params:serving.log.folder": None if folder is None else str(folder),
            "params:language.model": "compo_en",
            "params:site": site,
        }
        stored = JsonDataset(filepath=str(tmp_path / "monitoring.json"))
        outputs = {
            "monitoring": stored,
            "monitoring_report": PageDataset(filepath=str(report), page="monitoring.html"),
        }
        memory = {name: MemoryDataset(value, copy_mode="assign") for name, value in inputs.items()}
        SequentialRunner().run(
            register_pipelines()["monitoring"], DataCatalog({**memory, **outputs})
        )
        found: dict[str, Any] = stored.load()
        return found

    return start


def test_drift_is_reported_logged_and_an_alarm(
    version: Callable[..., str],
    run: Callable[..., dict[str, Any]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    approved: Callable[[str, str], None],
) -> None:
    fingerprint = version()
    write_log(tmp_path / "log", fingerprint, shift=2.5)
    report = run(tmp_path / "log")
    assert report["alarm"] and "images" in report["drifted"] and "tokens" not in report["drifted"]
    with pytest.raises(Alarm, match=f"{NAME} version 1 .*images") as raised:
        check(report)
    assert raised.value.exit_code == ALARM_STATUS == 3
    assert "Drift from the reference sample: images" in capsys.readouterr().out
    page = (tmp_path / "report" / "monitoring.html").read_text()
    assert f"<h1>Requests of {NAME} version 1</h1>" in page
    assert "gyrocopter" in page
    approved("monitoring", page)
    (logged,) = mlflow.search_runs(
        search_all_experiments=True, filter_string=f"tags.fingerprint = '{fingerprint}'",
        order_by=["start_time DESC"], max_results=1, output_format="list",
    )  # fmt: skip
    assert logged.data.tags["model"] == NAME and logged.data.tags["version"] == "1"
    assert logged.data.metrics["monitoring/alarm"] == 1
    by_name = {each["name"]: each for each in report["figures"]}
    assert logged.data.metrics["monitoring/images/adjusted"] == by_name["images"]["adjusted"]
    artefacts = mlflow.MlflowClient().list_artifacts(logged.info.run_id, "page")
    assert "page/monitoring.html" in {each.path for each in artefacts}


def test_a_version_without_a_reference_says_how_to_get_one(
    version: Callable[..., str], run: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    write_log(tmp_path / "log", version(rows=0))
    with pytest.raises(SettingsError, match=r"no reference sample.*--pipeline=rescore"):
        run(tmp_path / "log")


def test_missing_versions_and_logs_name_their_settings(
    version: Callable[..., str], run: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    version()
    with pytest.raises(SettingsError, match=r"serving\.log\.folder"):
        run(None)
    with pytest.raises(SettingsError, match=r"monitoring\.version"):
        run(None, version=7)
    with pytest.raises(SettingsError, match=r"monitoring\.alias"):
        run(None, alias="nobody")
    write_log(tmp_path / "log", "another model's")
    with pytest.raises(SettingsError, match="answered by another model: 60"):
        run(tmp_path / "log")


def test_the_exit_status_tells_schedulers(
    version: Callable[..., str], workspace: Path, tmp_path: Path
) -> None:
    fingerprint = version(project=workspace)
    reports = workspace / "data" / "08_reporting" / "scenes"
    for shift, status in ((0.0, 0), (2.5, ALARM_STATUS)):
        folder = tmp_path / f"log{status}"
        write_log(folder, fingerprint, shift)
        given = f"registration.name={NAME},serving.log.folder={folder}"
        done = CliRunner().invoke(
            KedroCLI(workspace), ["run", "--pipeline=monitoring", "--params", given]
        )
        assert done.exit_code == status, done.output
        assert len(done.stderr.splitlines()) == (status > 0)
        assert done.stderr.startswith(f"Error: monitoring: requests of {NAME}" if status else "")
        assert "Traceback" not in done.output and "resume" not in done.output
        assert (reports / "monitoring" / "monitoring.html").exists()
