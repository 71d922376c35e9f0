"""The WiSE-FT pipeline as Kedro runs it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
import torch
from kedro.io import DataCatalog, MemoryDataset
from kedro.runner import SequentialRunner
from kedro_datasets.pandas import CSVDataset
from PIL import Image

from compo_pipeline.benchmarks.settings import BenchmarkSet, RetrievalSettings
from compo_pipeline.core.provenance import Site
from compo_pipeline.core.records import Caption
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.data.catalog import FolderDataset
from compo_pipeline.models.export import export
from compo_pipeline.models.loading import load
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.pages.wise_ft_page import describe_choice
from compo_pipeline.pipeline_registry import register_pipelines
from compo_pipeline.project.settings import RunSettings
from compo_pipeline.registry import runs as tracking
from compo_pipeline.registry.tracking_settings import TrackingSettings

SWAPS = ("swap_obj", "swap_att")
REPLACES = ("replace_obj", "replace_att", "replace_rel")
IMAGES = 5


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images, and all subtasks of SugarCrepe++ about them."""
    root = tmp_path_factory.mktemp("wise_ft")
    (root / "benchmarks" / "sugar_crepe_pp").mkdir(parents=True)
    for number in range(IMAGES):
        pixels = np.random.default_rng(number).integers(0, 255, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / f"{number}.png")
    for name in (*SWAPS, *REPLACES):
        items = [
            {
                "id": number,
                "filename": f"{number}.png",
                "caption": f"cup {number} {name}",
                "caption2": f"a cup is {number}",
                "negative_caption": f"key {number}",
            }
            for number in range(IMAGES)
        ]
        (root / "benchmarks" / "sugar_crepe_pp" / f"{name}.json").write_text(json.dumps(items))
    return root


@pytest.fixture(scope="module")
def tuned(tiny_clip: Path, data: Path) -> Path:
    """The base with another text tower, as training leaves it."""
    loaded = load(tiny_clip)
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in loaded.model.named_parameters():
            if not name.startswith("visual.") and parameter.ndim > 1:
                parameter.add_(0.5 * torch.randn(parameter.shape, generator=draw))
    note = {"fingerprint": {"model": loaded.fingerprint}, "wise_ft_ratio": 1.0}
    return export(loaded, data / "tuned", metadata={"training": note})


@pytest.fixture
def catalog(
    shipped: RunSettings,
    data: Path,
    tuned: Path,
    tiny_clip: Path,
    mlflow_project: Path,
    tmp_path: Path,
) -> DataCatalog:
    """What the pipeline reads and writes, with the project's settings."""
    tracking.configure(TrackingSettings(), mlflow_project)
    benchmarks = replace(
        shipped.benchmarks,
        root=str(data / "benchmarks"),
        images=str(data),
        sets={"sugar_crepe_pp": BenchmarkSet()},
    )
    captions = [
        Caption(f"s{k}", f"{k}", f"{k}.png", 32, 32, (f"Cup {k}.",), "x", "test")
        for k in range(IMAGES)
    ]
    inputs: dict[str, Any] = {
        "valid_captions": captions,
        "foils": [],
        "checkpoint": tuned,
        "run": {
            "run_id": tracking.open_run("wise_ft", {}),
            "method": "clic",
            "variant": "mine",
            "seed": 0,
        },
        "params:evaluation": shipped.evaluation,
        "params:benchmarks": benchmarks,
        "params:tuning.benchmarks": replace(
            benchmarks, root=str(data / "validation"), retrieval=RetrievalSettings(None)
        ),
        "params:model": ModelSettings(f"local-dir:{tiny_clip}"),
        "params:data.root": data,
        "params:language.model": "compo_en",
        "params:site": Site(
            pages={
                "wise_ft_report": str(tmp_path / "report" / "wise_ft.html"),
                "report": str(tmp_path / "run" / "report.html"),
                "promotion_report": str(tmp_path / "promotion" / "promotion.html"),
            }
        ),
    }
    outputs: dict[str, Any] = {
        "wise_ft": CSVDataset(filepath=str(tmp_path / "wise_ft.csv"), save_args={"index": False}),
        "wise_ft_report": FolderDataset(filepath=str(tmp_path / "report")),
    }
    return DataCatalog({**{k: MemoryDataset(v) for k, v in inputs.items()}, **outputs})


def test_every_ratio_is_scored_drawn_and_kept_with_the_run(
    catalog: DataCatalog, capsys: pytest.CaptureFixture[str]
) -> None:
    SequentialRunner().run(register_pipelines()["wise_ft"], catalog)
    table = catalog.load("wise_ft")
    table = table[table.measured_on == "reported"]
    figures = table[(table.metric == "itt") & (table.name == "average")]
    means = table[table.benchmark == "roles"]
    assert set(means.name) == {"composition", "retrieval"}
    composition = means[means.name == "composition"]
    assert list(composition.sets.unique()) == ["SugarCrepe++ ITT average"]
    assert list(composition.value) == list(figures.value)
    assert list(figures.ratio) == [k / 10 for k in range(11)]
    # Items are won and lost between the ends, or the sweep would have left the weights alone.
    assert figures.value.nunique() > 1 and figures.against_base.iloc[0] == 0
    assert {path.name for path in catalog.load("wise_ft_report").iterdir()} == {
        "trade_off.png",
        "figures.csv",
        "wise_ft.html",
    }
    page = (catalog.load("wise_ft_report") / "wise_ft.html").read_text(encoding="utf-8")
    assert 'href="../run/report.html"' in page and "kedro run --pipeline=wise_ft" in page
    assert f"<td>{figures.label.iloc[0]}</td>" in page
    assert "Composition: SugarCrepe++ ITT average." in page
    assert "there are none (tuning.benchmarks" in page
    shown = capsys.readouterr().out
    assert "Composition" in shown and "0.9" in shown and "No ratio is chosen" in shown

    client, run = mlflow.MlflowClient(), catalog.load("run")["run_id"]
    kept = {file.path for file in client.list_artifacts(run, "wise_ft")}
    assert kept == {f"wise_ft/{name}" for name in ("trade_off.png", "figures.csv", "wise_ft.html")}
    history = client.get_metric_history(run, "wise_ft/composition")
    assert [point.step for point in history] == list(range(0, 101, 10))
    assert [point.value for point in history] == pytest.approx(list(figures.value))


def test_another_base_than_the_checkpoints_is_refused(catalog: DataCatalog, tuned: Path) -> None:
    catalog["params:model"] = MemoryDataset(ModelSettings(f"local-dir:{tuned}"))
    with pytest.raises(SettingsError, match="set model.name, model.pretrained"):
        SequentialRunner().run(register_pipelines()["wise_ft"], catalog)


def test_the_ratio_is_chosen_on_validation_items_which_are_not_reported(
    catalog: DataCatalog, data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The validation files ask about other images; then about the reported ones."""
    for number in range(IMAGES):
        pixels = np.random.default_rng(99 + number).integers(0, 255, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(data / f"v{number}.png")
    folder = data / "validation" / "sugar_crepe_pp"
    folder.mkdir(parents=True)
    titles = {"source": "here", "titles": {"sugar_crepe_pp": "Own"}}  # official ones choose nothing
    (folder.parent / "benchmarks.json").write_text(json.dumps(titles))
    for file in (data / "benchmarks" / "sugar_crepe_pp").iterdir():
        items = json.loads(file.read_text())
        own = [
            {**item, "filename": f"v{item['filename']}", "caption": f"v {item['caption']}"}
            for item in items
        ]
        (folder / file.name).write_text(json.dumps(own))
    SequentialRunner().run(register_pipelines()["wise_ft"], catalog)
    table = catalog.load("wise_ft")
    assert set(table.measured_on) == {"reported", "validation"}
    page = (catalog.load("wise_ft_report") / "wise_ft.html").read_text(encoding="utf-8")
    assert "there are no validation items" not in page
    shutil.copytree(data / "benchmarks", data / "validation", dirs_exist_ok=True)
    SequentialRunner().run(register_pipelines()["wise_ft"], catalog)
    assert set(catalog.load("wise_ft").measured_on) == {"reported"}
    assert "No ratio is chosen: tuning.benchmarks: 5 of 5 items" in caplog.text
    shutil.rmtree(data / "validation")


def test_the_chosen_ratio_costs_no_main_figure_on_the_validation_items() -> None:
    def figure(ratio: float, benchmark: str, gain: float, sure: bool) -> dict[str, Any]:
        metric, name = {"roles": ("mean", "composition"), "zero_shot": ("top1", "things")}[
            benchmark
        ]
        spread = 0.5 if sure else 9.0
        return {
            "ratio": ratio, "benchmark": benchmark, "metric": metric, "name": name,
            "headline": True, "against_base": gain, "measured_on": "validation",
            "against_base_low": gain - spread, "against_base_high": gain + spread,
            "significance": "above" if gain > spread else "level",
        }  # fmt: skip

    rows = [
        figure(0.2, "roles", 1.0, sure=True),
        figure(0.2, "zero_shot", 0.0, sure=True),
        figure(0.5, "roles", 3.0, sure=True),
        figure(0.5, "zero_shot", -2.0, sure=False),
        figure(1.0, "roles", 5.0, sure=True),
        figure(1.0, "zero_shot", -2.0, sure=True),
    ]
    # On the reported items another ratio is the best, which chooses nothing.
    reported = [
        {**row, "measured_on": "reported", "against_base": 9 - 2 * row["ratio"]}
        for row in rows
        if row["benchmark"] == "roles"
    ]
    chosen = describe_choice(pd.DataFrame([*rows, *reported]))
    assert chosen.startswith("Ratio 0.5, chosen on the validation items: there it is 3.0 points")
    assert chosen.endswith("On the reported items its composition is +8.0 [+2.5, +3.5]")
    assert describe_choice(pd.DataFrame(rows[-2:])).endswith("no headline metric below the base")
    assert "no set of composition" in describe_choice(pd.DataFrame(rows[1::2]))
    assert "there are none (tuning.benchmarks" in describe_choice(pd.DataFrame(reported))
