"""The registration pipeline by its catalog names: a checkpoint goes in, a version comes out."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import mlflow
import pytest
import torch
from kedro.io import DataCatalog, MemoryDataset
from kedro.runner import SequentialRunner

from compo_pipeline.benchmarks.settings import BenchmarksSettings, RetrievalSettings
from compo_pipeline.core.records import Score
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.data.catalog import FolderDataset
from compo_pipeline.data.settings import DataSettings
from compo_pipeline.evaluation.comparison import compare, run_pairs
from compo_pipeline.evaluation.evaluate import ComparedModel, Comparison
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.generation.counterfactuals.settings import CounterfactualSettings
from compo_pipeline.generation.recaption.settings import RecaptionSettings
from compo_pipeline.models.loading import export, load
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.models.weights import read_record
from compo_pipeline.pipelines.registration.pipeline import create_pipeline
from compo_pipeline.registry import runs as tracking
from compo_pipeline.registry.evidence import read_evidence
from compo_pipeline.registry.settings import RegistrationSettings
from compo_pipeline.registry.tracking_settings import TrackingSettings

SCORES = [
    Score(model, "retrieval", "raw", "i2t_r1", str(item), f"{item}.png", (), item < right, None)
    for model, right in (("base", 2), ("clic", 3))
    for item in range(4)
]
MODELS = {"base": "base", "fine_tuned": "clic"}
ROWS = tuple(compare([SCORES], MODELS, run_pairs(MODELS), {}))
COMPARED = {role: ComparedModel(name, name) for role, name in MODELS.items()}


def compared(fingerprint: str, split: str = "test") -> Comparison:
    """The comparison of a checkpoint with its base."""
    tuned = replace(COMPARED["fine_tuned"], fingerprint=fingerprint)
    models = {**COMPARED, "fine_tuned": tuned}
    return Comparison(models, ROWS, "toy", sources={"retrieval": split})


@pytest.fixture
def entries(tiny_clip: Path, tmp_path: Path, mlflow_project: Path) -> dict[str, Any]:
    settings = TrackingSettings(experiment="registration pipeline")
    tracking.configure(settings, mlflow_project)
    checkpoint = export(load(tiny_clip), tmp_path / "checkpoint", metadata={"seed": 3})
    return {
        "checkpoint": checkpoint,
        "run": {
            "method": "clic",
            "variant": "wide",
            "seed": 3,
            "run_id": tracking.open_run("clic", {"method": "clic"}),
        },
        "manifest": {"data_hash": "d" * 64, "count": 3, "files": {}},
        "params:model": ModelSettings(),
        "params:dataset": "toy",
        "params:data": DataSettings(root=tmp_path, format="table", splits={}),
        "params:method": "clic",
        "params:language.model": "compo_en",
        "params:recaption": RecaptionSettings(),
        "params:counterfactuals": CounterfactualSettings(),
        "comparison": compared(load(checkpoint).fingerprint),
        "scores": SCORES,
        "scored_items": [],
        "valid_captions": [],
        "params:evaluation": EvaluationSettings(device="cpu"),
        "params:data.root": tmp_path,
        "params:promotion.waive": (),
        "params:tuning.benchmarks": BenchmarksSettings(retrieval=RetrievalSettings("val")),
        "params:registration": RegistrationSettings(
            "pipeline-clip", alias="fresh", precision="fp16"
        ),
    }


def run(entries: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The version that is registered; its files go to the folder."""
    catalog = DataCatalog({name: MemoryDataset(value) for name, value in entries.items()})
    catalog["export"] = FolderDataset(filepath=str(folder))
    outputs = SequentialRunner().run(create_pipeline(), catalog)
    registered: dict[str, Any] = outputs["registered"].load()
    return registered


def test_a_checkpoint_becomes_a_version_in_its_own_run(
    entries: dict[str, Any], tmp_path: Path
) -> None:
    folder = tmp_path / "export"
    registered = run(entries, folder)

    assert registered["fresh"] is True
    assert registered["run_id"] == entries["run"]["run_id"]
    record = read_record(folder)
    assert (record["method"], record["precision"], record["seed"]) == ("clic", "fp16", 3)
    version = mlflow.MlflowClient().get_model_version_by_alias("pipeline-clip", "fresh")
    assert int(version.version) == registered["version"]
    recorded = mlflow.get_run(registered["run_id"])
    assert recorded.info.status == "FINISHED"
    assert recorded.data.metrics["_headline/retrieval.i2t_r1.raw"] == 75
    card = (folder / "README.md").read_text()
    assert registered["run_id"] in card and "| 75.0 [" in card and "variant wide" in card
    assert "Training rows" not in card
    assert run(entries, folder) == {**registered, "fresh": False}


@pytest.mark.parametrize(
    ("split", "key"),
    [("val", "tuning.benchmarks.retrieval.split"), ("mine", "training.validation.split")],
)
def test_a_model_that_was_scored_on_items_that_select_gets_no_alias(
    entries: dict[str, Any], tmp_path: Path, split: str, key: str
) -> None:
    """As the evaluation and the training recorded them, whatever the configuration is now."""
    recipe = {"validation": {"every": 5, "split": "mine", "rows": 512, "figure": None}}
    trained = {"seed": 3, "training": {"fingerprint": {"training": recipe}}}
    folder = tmp_path / "selected"
    entries["checkpoint"] = export(load(entries["checkpoint"]), folder, metadata=trained)
    entries["comparison"] = compared(load(folder).fingerprint, split)
    with pytest.raises(SettingsError, match=rf"^benchmarks.retrieval.split: '{split}' .*{key}"):
        run(entries, tmp_path / "export")
    settings = RegistrationSettings(f"unnamed-{split}", alias=None)
    run({**entries, "params:registration": settings}, tmp_path / "export")
    assert read_evidence(tmp_path / "export").selecting == {"retrieval": key}


def test_a_comparison_of_other_weights_is_refused(entries: dict[str, Any], tmp_path: Path) -> None:
    changed = load(entries["checkpoint"])
    with torch.no_grad():
        changed.model.get_parameter("text_projection")[:4] += 1
    export(changed, entries["checkpoint"], metadata={"seed": 3})
    message = rf"comparison: .*{load(entries['checkpoint']).fingerprint[:16]}; .*evaluation"
    with pytest.raises(SettingsError, match=message):
        run(entries, tmp_path / "export")
    assert not (tmp_path / "export").exists()
