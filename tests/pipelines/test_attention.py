"""The attention pipeline as Kedro runs it."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlflow
import pytest
import torch
from kedro.framework.cli.utils import _split_params
from kedro.io import DataCatalog, MemoryDataset
from kedro.runner import SequentialRunner
from PIL import Image

from compo_pipeline.configuration.settings import SettingsError, parse, plain
from compo_pipeline.datasets.catalog import FolderDataset, FrameDataset
from compo_pipeline.datasets.settings import DataSettings
from compo_pipeline.evaluation.analysis.settings import AttentionSettings
from compo_pipeline.models.export import export
from compo_pipeline.models.loading import load
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.models.weights import RECORD_FILE, read_record
from compo_pipeline.pipelines.attention import create_pipeline
from compo_pipeline.project.settings import RunSettings
from compo_pipeline.storage.files import write_json
from compo_pipeline.tracking import runs as tracking
from compo_pipeline.tracking.settings import TrackingSettings
from compo_scenes.dataset import SceneSettings, write


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few rendered scenes with their regions."""
    root = tmp_path_factory.mktemp("attention") / "scenes"
    few = {"train": 1, "val": 1, "test": 6, "items": 1, "images": 4, "classified": 1}
    write(SceneSettings(**few), root)
    return root


@pytest.fixture(scope="module")
def tuned(tiny_clip: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The base with other weights, as training leaves it."""
    loaded = load(tiny_clip)
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            if parameter.ndim > 1:
                parameter.add_(0.5 * torch.randn(parameter.shape, generator=draw))
    note = {"fingerprint": {"model": loaded.fingerprint}}
    folder = tmp_path_factory.mktemp("tuned") / "checkpoint"
    return export(loaded, folder, metadata={"training": note})


@pytest.fixture
def catalog(
    shipped: RunSettings,
    scenes: Path,
    tuned: Path,
    tiny_clip: Path,
    mlflow_project: Path,
    tmp_path: Path,
) -> DataCatalog:
    """What the pipeline reads and writes, with the project's settings."""
    tracking.configure(TrackingSettings(), mlflow_project)
    identity = {"method": "c2lip", "variant": "default", "seed": 0}
    (tmp_path / "no_control").mkdir()
    inputs: dict[str, Any] = {
        "checkpoint": tuned,
        "control_checkpoint": tmp_path / "no_control",
        "run": {"run_id": tracking.open_run("attention", {}), **identity},
        "params:attention": replace(shipped.attention, count=4),
        "params:evaluation": shipped.evaluation,
        "params:model": ModelSettings(f"local-dir:{tiny_clip}"),
        "params:data": DataSettings(scenes, "scenes", {"test": "test"}),
        "params:ingest": shipped.ingest,
    }
    outputs: dict[str, Any] = {
        "attention": FrameDataset(filepath=str(tmp_path / "attention.parquet")),
        "attention_report": FolderDataset(filepath=str(tmp_path / "report")),
    }
    return DataCatalog({**{k: MemoryDataset(v) for k, v in inputs.items()}, **outputs})


def of_ones_own(catalog: DataCatalog, told: str) -> None:
    """Set what `--params` would."""
    given = _split_params(None, None, told)["attention"]
    values = {**plain(catalog.load("params:attention")), **given}
    catalog["params:attention"] = MemoryDataset(parse(AttentionSettings, values, "attention"))


def test_regions_are_measured_drawn_and_kept_with_the_run(
    catalog: DataCatalog, tuned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    catalog["control_checkpoint"] = MemoryDataset(tuned)
    SequentialRunner().run(create_pipeline(), catalog)
    rows = catalog.load("attention")
    assert list(rows.model.unique()) == ["base", "control", "fine_tuned"]
    assert rows.image.nunique() == 6 and rows.problem.isna().all()
    assert rows.share.between(0, 1).all() and rows.area.between(0, 1).all()
    base, control, fine_tuned = (rows[rows.model == role].share for role in rows.model.unique())
    assert list(control) == list(fine_tuned) != list(base)

    written = {path.name for path in (catalog.load("attention_report") / "test").iterdir()}
    assert written == {"attention.html", "attention.csv", "attention_01.png"}
    assert "most attended patch on it" in capsys.readouterr().out

    client, run = mlflow.MlflowClient(), catalog.load("run")["run_id"]
    kept = {file.path for file in client.list_artifacts(run, "attention/test")}
    assert kept == {f"attention/test/{name}" for name in written}
    metrics = client.get_run(run).data.metrics
    assert metrics["attention/test/share/fine_tuned"] == pytest.approx(100 * fine_tuned.mean())
    assert metrics["attention/test/share/chance"] == pytest.approx(
        100 * rows[rows.model == "base"].area.mean()
    )


def test_images_and_phrases_of_ones_own(
    catalog: DataCatalog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = tmp_path / "my photos"
    photos.mkdir()
    Image.new("RGB", (90, 60), "red").save(photos / "photo.jpg")
    (photos / "broken.jpg").write_text("no image")
    of_ones_own(catalog, f"attention.images={photos},attention.phrases=a red shirt; a grey horse")
    SequentialRunner().run(create_pipeline(), catalog)
    rows = catalog.load("attention")
    rows = rows[rows.model == "base"].set_index("image")
    assert list(rows.loc["photo.jpg"].phrase) == ["a red shirt", "a grey horse"]
    assert rows.share.map(math.isnan).all() and rows.loc["photo.jpg"].problem.isna().all()
    assert set(rows.loc["broken.jpg"].problem) == {"unreadable image (not_an_image)"}
    report = catalog.load("attention_report") / "own"
    assert (report / "attention_01.png").is_file()
    assert "2 of 4 phrases are drawn" in (report / "attention.html").read_text()
    assert "unreadable: broken.jpg" in capsys.readouterr().out
    kept = mlflow.MlflowClient().list_artifacts(catalog.load("run")["run_id"], "attention/own")
    assert "attention/own/attention_01.png" in {file.path for file in kept}


def test_where_no_image_can_be_read_nothing_is_drawn(catalog: DataCatalog, tmp_path: Path) -> None:
    (tmp_path / "broken.jpg").write_text("no image")
    of_ones_own(catalog, f"attention.images={tmp_path / 'broken.jpg'},attention.phrases=a dog")
    SequentialRunner().run(create_pipeline(), catalog)
    written = {path.name for path in (catalog.load("attention_report") / "own").iterdir()}
    assert written == {"attention.html", "attention.csv"}


def test_another_base_than_the_checkpoints_is_refused(catalog: DataCatalog, tuned: Path) -> None:
    catalog["params:model"] = MemoryDataset(ModelSettings(f"local-dir:{tuned}"))
    with pytest.raises(SettingsError, match="fine-tuned from another model .* set model.name"):
        SequentialRunner().run(create_pipeline(), catalog)


def test_an_image_tower_of_another_kind_is_refused(
    catalog: DataCatalog, tuned: Path, tmp_path: Path
) -> None:
    """Where nobody noted what a checkpoint was fine-tuned from."""
    foreign = shutil.copytree(tuned, tmp_path / "foreign")
    write_json(foreign / RECORD_FILE, {**read_record(foreign), "training": {}})
    catalog["checkpoint"] = MemoryDataset(foreign)
    catalog["params:model"] = MemoryDataset(ModelSettings("scenes-base"))
    with pytest.raises(SettingsError, match="image towers of .* differ; set model.name"):
        SequentialRunner().run(create_pipeline(), catalog)
