"""The export pipeline by its catalog names: a checkpoint goes in, folders come out."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kedro.io import DataCatalog, MemoryDataset
from kedro.runner import SequentialRunner

from compo_pipeline.core.settings import SettingsError
from compo_pipeline.data.catalog import FolderDataset
from compo_pipeline.evaluation.evaluate import ComparedModel, Comparison
from compo_pipeline.models import onnx_export
from compo_pipeline.models.loading import load
from compo_pipeline.models.settings import ExportSettings
from compo_pipeline.pipelines.export.pipeline import create_pipeline
from compo_pipeline.project.settings import RunSettings


def compared(fingerprint: str) -> Comparison:
    """The comparison of a checkpoint."""
    models = {"fine_tuned": ComparedModel("m", "M", fingerprint=fingerprint)}
    return Comparison(models, (), "toy")


@pytest.fixture
def entries(tiny_clip: Path, shipped: RunSettings) -> dict[str, Any]:
    return {
        "checkpoint": tiny_clip,
        "comparison": compared(load(tiny_clip).fingerprint),
        "params:export": shipped.export,
    }


@pytest.fixture
def run(tmp_path: Path) -> Callable[[dict[str, Any]], Path]:
    """Runs the pipeline; the folder that it writes."""

    def export(entries: dict[str, Any]) -> Path:
        catalog = DataCatalog({name: MemoryDataset(value) for name, value in entries.items()})
        catalog["exported"] = FolderDataset(filepath=str(tmp_path / "exported"))
        folder: Path = SequentialRunner().run(create_pipeline(), catalog)["exported"].load()
        return folder

    return export


def test_asked_formats_are_written_and_others_removed(
    entries: dict[str, Any], run: Callable[[dict[str, Any]], Path], tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "exported" / "onnx").mkdir(parents=True)
    folder = run({**entries, "params:export": ExportSettings(onnx=False)})
    assert [path.name for path in folder.iterdir()] == ["hugging_face"]
    assert (folder / "hugging_face" / "config.json").is_file()


def test_a_checkpoint_that_was_not_evaluated_is_not_exported(
    entries: dict[str, Any], run: Callable[[dict[str, Any]], Path]
) -> None:
    entries["comparison"] = compared("f" * 64)
    with pytest.raises(SettingsError, match=r"comparison: .*f{16}.*--pipeline=evaluation"):
        run({**entries, "params:export": ExportSettings(onnx=False)})


def test_a_missing_package_stops_before_any_work(
    entries: dict[str, Any],
    run: Callable[[dict[str, Any]], Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(onnx_export, "find_spec", lambda name: None)
    with pytest.raises(SettingsError, match="pip install"):
        run(entries)
    assert not (tmp_path / "exported").exists()
