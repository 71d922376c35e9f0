"""The training nodes: a method and its control trained, exported and recorded in one run."""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
import torch
from mlflow.exceptions import MlflowException
from PIL import Image

from compo_pipeline.benchmarks.items import Item, Subtask
from compo_pipeline.benchmarks.settings import BenchmarksSettings, RetrievalSettings
from compo_pipeline.core.files import write_text
from compo_pipeline.core.provenance import CommandOptions
from compo_pipeline.core.records import Caption, Parse
from compo_pipeline.core.settings import SettingsError, parse, plain
from compo_pipeline.data.catalog import FolderDataset
from compo_pipeline.evaluation.analysis.wise_ft import choose_ratio
from compo_pipeline.methods.clic import Clic, ClicObjective, ClicViews
from compo_pipeline.methods.contract import ViewContext
from compo_pipeline.methods.registry import METHODS
from compo_pipeline.methods.views import write
from compo_pipeline.models.loading import load
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.models.weights import read_record
from compo_pipeline.pipelines.training import nodes as training_nodes
from compo_pipeline.pipelines.training.nodes import (
    log_training,
    open_run,
    prepare_training,
    train_models,
)
from compo_pipeline.project.settings import Parameters
from compo_pipeline.registry import runs as tracking
from compo_pipeline.registry.tracking_settings import TrackingSettings
from compo_pipeline.training.checkpoint import FingerprintError
from compo_pipeline.training.settings import TrainingSettings

Node = Callable[..., tuple[Path, Path, dict[str, Any], pd.DataFrame]]
CLIC_POINTS = {"contrastive", "s_neg", "unimodal", "clip"}


@pytest.fixture(scope="module")
def captions() -> list[Caption]:
    texts = [f"{colour} {thing}" for thing in ("cat", "dog") for colour in ("red", "blue", "old")]
    rows = [
        Caption(f"s{i}", f"s{i}", f"s{i}.png", 40, 30, (text, "It is.", "So."), "test", "train")
        for i, text in enumerate(texts)
    ]
    hats = (("v", "A hat"), ("w", "A red hat"))
    held = [Caption(n, n, f"{n}.png", 40, 30, (text, "It is."), "test", "val") for n, text in hats]
    return [*rows, *held]


@pytest.fixture
def node(
    mlflow_project: Path,
    captions: list[Caption],
    shipped: Parameters,
    context: Callable[..., Any],
    tiny_clip: Path,
    tmp_path: Path,
) -> Node:
    """The nodes on six images; settings are the shipped ones but for size."""
    settings = TrackingSettings(experiment="training node")
    tracking.configure(settings, mlflow_project)
    noise = np.random.default_rng(0)
    for row in captions:
        pixels = noise.integers(0, 256, (30, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / row.image)
    rows = [row for row in captions if row.split == "train"]
    parses = {
        row.sample_id: Parse(
            *(row.sample_id, 0, row.sentences[0], tuple(row.sentences[0].split())),
            *((0, row.sentences[0].index(" ") + 1), ("ADJ", "NOUN"), ("", ""), ()),
        )
        for row in rows
    }
    write(
        *(Clic(ClicViews(), ClicObjective()), rows, ViewContext(parses, "hand", 0, 0), 2),
        tmp_path / "views",
    )
    small = {"epochs": 2, "batch_size": 3, "workers": 0, "log_every": 1, "device": "cpu"}
    reported = BenchmarksSettings(retrieval=RetrievalSettings("train"))
    none = {"views": {}, "objective": {}}

    def run(
        *,
        training: Mapping[str, Any] = MappingProxyType({}),
        benchmarks: BenchmarksSettings = reported,
        model: str = f"local-dir:{tiny_clip}",
        data_hash: str = "d1",
        method: str = "clic",
        control: bool = True,
        selecting: BenchmarksSettings = reported,
    ) -> tuple[Path, Path, dict[str, Any], pd.DataFrame]:
        values = {**plain(shipped.training), **small, **training}
        recipe = parse(TrainingSettings, values, "training")
        models = tmp_path / "models"
        state = {name: str(models / name) for name in ("resume", "features")}
        inputs = prepare_training(
            valid_captions=captions,
            foils=[],
            manifest={"data_hash": data_hash},
            views=tmp_path / "views",
            counterfactual_images=tmp_path / "made",
            model=ModelSettings(model),
            training=recipe,
            split="train",
            seed=0,
            root=tmp_path,
            benchmarks=benchmarks,
            selecting=selecting,
            paths=replace(shipped.paths, **state),
        )
        known = method in METHODS
        own = context(method=method).params["method_settings"] if known else none
        asked = method, own, control, "toy", "default", CommandOptions()
        record = open_run(inputs, {"edits": 0}, *asked)
        read = captions, [], method, own, selecting, benchmarks
        *made, progress = train_models(inputs, record, *read)
        folders = models / "checkpoint", models / "control_checkpoint"
        for saved, folder in zip(made, folders, strict=True):
            FolderDataset(filepath=str(folder)).save(saved)
        page = tmp_path / "preview" / "index.html"
        write_text(page, "views to look at")
        return *folders, record, log_training(record, progress, page.parent)

    return run


def test_method_and_control_are_trained_and_recorded(node: Node, tiny_clip: Path) -> None:
    checkpoint, control, run, curves = node()
    prints = {load(folder).fingerprint for folder in (checkpoint, control, tiny_clip)}
    assert len(prints) == 3
    assert {load(folder).image_fingerprint for folder in (checkpoint, control)} == {
        load(tiny_clip).image_fingerprint
    }
    assert run.items() >= {"method": "clic", "variant": "default", "seed": 0}.items()

    of_clic, of_control = (curves[curves.model == name] for name in ("clic", "control"))
    assert list(of_clic.step) == list(of_control.step) == [1, 2, 3, 4]
    assert list(of_clic.lr) == list(of_control.lr)
    assert of_clic[list(CLIC_POINTS)].notna().any().all()
    assert of_control[["clip", "loss"]].notna().all().all()
    assert of_control["s_neg"].isna().all()

    recorded = mlflow.get_run(run["run_id"])
    assert recorded.info.status == "FINISHED"
    assert recorded.info.run_name == "toy-clic-default-seed0"
    points = mlflow.MlflowClient().get_metric_history(run["run_id"], "train/loss")
    assert recorded.info.end_time >= max(point.timestamp for point in points)
    names = {"dataset": "toy", "method": "clic", "variant": "default", "seed": "0"}
    assert recorded.data.tags.items() >= {**names, "data_hash": "d1"}.items()
    assert recorded.data.params["training.optimizer.lr"]
    assert recorded.data.params["clic.objective.weights.s_neg"] == "0.5"
    curves_of_clic = {f"train/{name}" for name in (*CLIC_POINTS, "loss", "lr", "scale")}
    assert curves_of_clic <= set(recorded.data.metrics)
    beside = mlflow.get_run(tracking.child_run(run["run_id"], "control"))
    assert beside.info.status == "FINISHED"
    assert beside.info.run_name == "toy-clic-default-seed0-control"
    assert beside.data.tags.items() >= {**names, "role": "control"}.items()
    assert {"train/clip", "train/loss", "train/lr"} <= set(beside.data.metrics)
    for each in (recorded, beside):
        assert {name.partition("/")[0] for name in each.data.metrics} == {"train"}
        assert mlflow.artifacts.load_dict(f"{each.info.artifact_uri}/batches.json")["rows"] == 12
    kept = mlflow.MlflowClient().list_artifacts(run["run_id"], "views")
    assert [file.path for file in kept] == ["views/index.html"]


def test_validations_are_in_the_curves_and_the_control_stops_with_its_method(node: Node) -> None:
    figure = "retrieval/i2t_r1/raw"
    validation = {"every": 1, "figure": figure}
    stopping = {"patience": 1, "min_delta": 200.0}  # points that no figure can rise by
    recipe = {"validation": validation, "early_stopping": stopping, "keep": "best"}
    checkpoint, control, run, curves = node(training=recipe)
    names = ["val/contrastive_loss", f"val/{figure}"]
    for name in ("clic", "control"):
        own = curves[curves.model == name]
        assert list(own.step) == [0, 1, 2] and own[names].notna().all().all()
    for folder in (checkpoint, control):
        told = read_record(folder)["training"]
        assert (told["steps"], told["planned_steps"], told["selected"]["by"]) == (2, 4, names[1])
    points = mlflow.MlflowClient().get_metric_history(run["run_id"], names[0])
    assert [point.step for point in points] == [0, 1, 2]
    assert node(training=recipe)[2] == run  # finished: asked again it is the same run


def test_asked_again_it_takes_no_step_and_keeps_its_run(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = node()
    monkeypatch.setattr(Clic, "loss", lambda *_: pytest.fail("a step was taken"))
    with caplog.at_level(logging.INFO):
        again = node()
    assert again[2] == first[2]
    pd.testing.assert_frame_equal(again[3], first[3])
    assert "clic: 4 of 4 steps are done" in caplog.text
    assert "control: 4 of 4 steps are done" in caplog.text


def test_another_configuration_is_refused_before_a_run_is_opened(
    node: Node, tmp_path: Path
) -> None:
    _, _, run, _ = node()
    before = len(mlflow.search_runs())
    with pytest.raises(FingerprintError, match=r"training.epochs: 2 -> 1.*variant=<name>"):
        node(training={"epochs": 1})
    with pytest.raises(FingerprintError, match=r"data: d1 -> d2"):
        node(data_hash="d2")
    assert len(mlflow.search_runs()) == before
    assert node()[2] == run  # the first configuration still finds its run
    _, _, other, curves = node(training={"epochs": 1, "overwrite": True})
    assert other["run_id"] != run["run_id"]
    assert list(curves[curves.model == "clic"].step) == [1, 2]


def test_an_interrupted_training_goes_on_in_its_run(
    node: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    loss, steps = Clic.loss, []

    def stop(self: Clic, encoder: Any, batch: Any) -> Any:
        steps.append(batch)
        if len(steps) == 3:
            raise RuntimeError("the power went")
        return loss(self, encoder, batch)

    monkeypatch.setattr(Clic, "loss", stop)
    with pytest.raises(RuntimeError, match="the power went"):
        node(training={"save_every": 1})
    note = json.loads((tmp_path / "models" / "resume" / "run.json").read_text())
    assert mlflow.get_run(note["run_id"]).info.status == "FAILED"
    assert not (tmp_path / "models" / "checkpoint").exists()
    monkeypatch.undo()
    _, _, run, curves = node(training={"save_every": 1})
    assert run["run_id"] == note["run_id"]
    assert mlflow.get_run(run["run_id"]).info.status == "FINISHED"
    assert list(curves[curves.model == "clic"].step) == [1, 2, 3, 4]


def steps_logged(run_id: str) -> list[int]:
    points = mlflow.MlflowClient().get_metric_history(run_id, "train/loss")
    return [point.step for point in points]


@pytest.mark.parametrize("returns", [True, False])
def test_a_store_that_goes_away_stops_no_training_and_gets_every_point(
    node: Node,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    returns: bool,
) -> None:
    """It goes away after the second point, for the rest of the method's training or for good."""
    tried: list[int] = []

    def fails(name: str, away: Callable[[int], bool]) -> None:
        call = getattr(mlflow.MlflowClient, name)

        def request(self: Any, *given: Any, **options: Any) -> Any:
            if name == "log_batch" and options.get("metrics"):
                tried.append(options["metrics"][0].step)
            if away(len(tried)):
                raise MlflowException("API request to /api failed: Connection refused\nTraceback")
            return call(self, *given, **options)

        monkeypatch.setattr(mlflow.MlflowClient, name, request)

    fails("log_batch", lambda tries: tries == 3 or (tries > 3 and not returns))
    for name in ("get_metric_history", "log_dict", "set_terminated"):
        fails(name, lambda tries: tries >= 3 and not returns)
    if returns:
        run = node()[2]
        # Not asked again within a minute, for the control neither: then for what the run lacks.
        assert tried[:4] == [1, 2, 3, 3]
    else:
        with pytest.raises(SettingsError, match=r"^tracking\.uri: cannot use .*refused"):
            node()
        assert tried == [1, 2, 3]
        saved = [load(tmp_path / "models" / name) for name in ("checkpoint", "control_checkpoint")]
        assert saved[0].fingerprint != saved[1].fingerprint
        monkeypatch.undo()
        monkeypatch.setattr(Clic, "loss", lambda *_: pytest.fail("a step was taken"))
        run = node()[2]
    (line,) = [line for line in caplog.messages if "training goes on" in line][:1]
    assert line.startswith("tracking.uri: sqlite") and "\n" not in line
    child = tracking.child_run(run["run_id"], "control")
    for run_id in (run["run_id"], child):
        assert sorted(steps_logged(run_id)) == [1, 2, 3, 4]
        assert mlflow.get_run(run_id).info.status == "FINISHED"


@pytest.mark.parametrize(
    ("method", "asked", "said"),
    [("clic", False, ""), ("siglip", True, "'siglip' is its own control")],
)
def test_without_a_control_its_place_says_why(
    node: Node, method: str, asked: bool, said: str
) -> None:
    """Plain fine-tuning would train twice and show differences of zero."""
    node()  # leaves a control there
    _, control, run, curves = node(method=method, control=asked, training={"overwrite": True})
    assert run["method"] == method and set(curves.model) == {method}
    assert curves["contrastive"].notna().any()
    assert [file.name for file in control.iterdir()] == ["no_control.json"]
    assert said in (control / "no_control.json").read_text()


def test_rows_that_are_held_out_are_counted_and_do_not_train(
    shipped: Parameters, tmp_path: Path
) -> None:
    def gathered(trains: str | tuple[str, ...], *splits: str) -> tuple[list[str], str | None]:
        rows = [
            Caption(f"{n}", f"{n}", f"{n}.png", 8, 8, ("a cat",), "x", split)
            for n, split in enumerate(splits)
        ]
        found = prepare_training(
            *(rows, [], {"data_hash": "x"}, tmp_path, tmp_path, shipped.model, shipped.training),
            *(trains, 0, tmp_path, *[shipped.benchmarks] * 2, shipped.paths),
        )
        return [row.sample_id for row in found.captions], found.rows

    carved = "not the published rows: 2 are held out for foils"
    assert gathered("train", "carved", "carved", "train") == (["2"], carved)
    published = ("train", "carved")
    assert gathered(published, "carved", "carved", "train") == (["0", "1", "2"], None)
    left = "1 that the sample leaves are held out for foils"
    assert gathered("train", "held_out", "train") == (["1"], left)
    assert gathered(published, "held_out", "train") == (["1"], left)
    both = f"{carved}, beside 1 that the sample leaves"
    assert gathered("train", "carved", "train", "held_out", "carved") == (["1"], both)
    assert gathered("train", "train", "val") == (["0"], None)


def test_items_choose_how_method_and_control_are_mixed_with_the_base(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ratio is that of the method's items; the weights are those of a recipe that gives it."""
    asked = Subtask("sugar_crepe", "swap_obj", ("image_to_text",), tmp_path, ())
    asked = replace(asked, items=(Item("0", "s0.png", ("red cat",), ("blue dog",)),))
    chosen: list[float] = []

    def choose(*given: Any) -> tuple[float, pd.DataFrame]:
        ratio, table = choose_ratio(*given)
        assert ratio == 1.0 and set(table.ratio) == {k / 10 for k in range(11)}
        chosen.append(0.3)
        return chosen[-1], table

    monkeypatch.setattr(training_nodes, "choose_ratio", choose)
    monkeypatch.setattr(training_nodes, "study_items", lambda *_: [asked])
    checkpoint, control, run, _ = node(training={"wise_ft": {"ratio": "auto"}})
    assert chosen == [0.3]
    mixed = [load(folder).model.state_dict() for folder in (checkpoint, control)]
    assert read_record(checkpoint)["training"]["wise_ft_ratio"] == 0.3
    stored = mlflow.artifacts.load_dict(f"runs:/{run['run_id']}/wise_ft_ratios.json")
    assert stored["ratio"] == 0.3 and len(stored["figures"]) > 11

    given = node(training={"wise_ft": {"ratio": 0.3}})
    for state, folder in zip(mixed, given, strict=False):
        for name, value in load(folder).model.state_dict().items():
            assert torch.equal(state[name], value)


def test_an_open_ratio_needs_items_of_composition(node: Node) -> None:
    of_retrieval = BenchmarksSettings(retrieval=RetrievalSettings("val"))
    with pytest.raises(SettingsError, match=r"^training.wise_ft.ratio: auto needs items of compo"):
        node(training={"wise_ft": {"ratio": "auto"}}, selecting=of_retrieval)
