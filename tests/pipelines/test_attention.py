"""The attention pipeline as Kedro runs it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import pytest
import torch
from kedro.framework.cli.utils import _split_params
from kedro.io import DataCatalog, MemoryDataset
from kedro.runner import SequentialRunner
from PIL import Image

from compo_pipeline.core.files import write_json
from compo_pipeline.core.provenance import Site
from compo_pipeline.core.records import Caption
from compo_pipeline.core.settings import SettingsError, parse, plain
from compo_pipeline.data.catalog import FolderDataset
from compo_pipeline.evaluation.analysis.settings import AttentionSettings
from compo_pipeline.models.export import export
from compo_pipeline.models.loading import load
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.models.weights import RECORD_FILE, read_record
from compo_pipeline.pipelines.attention.pipeline import create_pipeline
from compo_pipeline.project.settings import RunSettings
from compo_pipeline.registry import runs as tracking
from compo_pipeline.registry.tracking_settings import TrackingSettings


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
    tuned: Path,
    tiny_clip: Path,
    mlflow_project: Path,
    tmp_path: Path,
) -> DataCatalog:
    """What the pipeline reads and writes, with the project's settings."""
    tracking.configure(TrackingSettings(), mlflow_project)
    identity = {"method": "c2lip", "variant": "default", "seed": 0}
    (tmp_path / "data").mkdir()
    Image.new("RGB", (90, 60), "red").save(tmp_path / "data" / "a.jpg")
    caption = Caption("s", "i", "a.jpg", 90, 60, ("A red ball on a box.",), "", "test")
    inputs: dict[str, Any] = {
        "checkpoint": tuned,
        "valid_captions": [caption],
        "run": {"run_id": tracking.open_run("attention", {}), **identity},
        "params:attention": shipped.attention,
        "params:evaluation": shipped.evaluation,
        "params:model": ModelSettings(f"local-dir:{tiny_clip}"),
        "params:data.root": tmp_path / "data",
        "params:language.model": "compo_en",
        "params:site": Site(
            pages={"attention_report": str(tmp_path / "report" / "test" / "attention.html")}
        ),
    }
    outputs: dict[str, Any] = {
        "attention_report": FolderDataset(filepath=str(tmp_path / "report")),
    }
    return DataCatalog({**{k: MemoryDataset(v) for k, v in inputs.items()}, **outputs})


def of_ones_own(catalog: DataCatalog, told: str) -> None:
    """Set what `--params` would."""
    given = _split_params(None, None, told)["attention"]
    values = {**plain(catalog.load("params:attention")), **given}
    catalog["params:attention"] = MemoryDataset(parse(AttentionSettings, values, "attention"))


def test_phrases_of_a_split_are_drawn_and_kept_with_the_run(
    catalog: DataCatalog, approved: Callable[[str, str], None]
) -> None:
    SequentialRunner().run(create_pipeline(), catalog)
    page = (catalog.load("attention_report") / "test" / "attention.html").read_text()
    assert "Attention of c2lip, default, seed 0" in page
    approved("attention", page)
    kept = mlflow.MlflowClient().list_artifacts(catalog.load("run")["run_id"], "attention/test")
    assert [file.path for file in kept] == ["attention/test/attention.html"]


def test_images_and_phrases_of_ones_own(
    catalog: DataCatalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    photos = tmp_path / "my photos"
    photos.mkdir()
    Image.new("RGB", (90, 60), "red").save(photos / "photo.jpg")
    (photos / "broken.jpg").write_text("no image")
    of_ones_own(catalog, f"attention.images={photos},attention.phrases=a red shirt; a grey horse")
    SequentialRunner().run(create_pipeline(), catalog)
    assert "2 of 4 phrases are drawn" in caplog.text and "broken.jpg is not drawn" in caplog.text
    assert (catalog.load("attention_report") / "own" / "attention.html").is_file()


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
