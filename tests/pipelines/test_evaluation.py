"""The evaluation pipeline as Kedro runs it."""

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from kedro.io import DataCatalog, MemoryDataset
from kedro.runner import SequentialRunner
from kedro_datasets.json import JSONDataset
from PIL import Image
from safetensors.torch import load_file, save_file

from compo_pipeline.benchmarks.settings import FoilBenchmarkSettings
from compo_pipeline.core.provenance import CommandOptions, Site
from compo_pipeline.core.records import Caption, Fact, Foil, View
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.core.table_files import write_rows
from compo_pipeline.data.catalog import FolderDataset, JsonDataset, RowsDataset
from compo_pipeline.evaluation.comparison import by_model
from compo_pipeline.generation.foils.settings import FoilSettings
from compo_pipeline.methods.views import from_table, single_view
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.pipeline_registry import register_pipelines
from compo_pipeline.project.settings import RunSettings

IMAGES = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where everything of these tests lies."""
    return tmp_path_factory.mktemp("evaluation")


@pytest.fixture(scope="module")
def data(folder: Path) -> Path:
    """Images, and three benchmarks about them; one item of each asks for an absent image."""
    root = folder / "data"
    (root / "test").mkdir(parents=True)
    for number in range(IMAGES):
        pixels = np.random.default_rng(number).integers(0, 255, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / "test" / f"{number}.png")
    names = [f"{number}.png" for number in range(IMAGES)] + ["absent.png"]
    pair = [
        {"filename": name, "caption": f"cup {name}", "negative_caption": f"key {name}"}
        for name in names
    ]
    _write(root, "sugar_crepe/swap_obj.json", {str(k): record for k, record in enumerate(pair)})
    plus = [{"id": k, "caption2": f"a cup is {k}", **record} for k, record in enumerate(pair)]
    _write(root, "sugar_crepe_pp/swap_obj.json", plus)
    classes = ["cup", "key", "tree"]
    items = [{"filename": name, "class": classes[k % 3]} for k, name in enumerate(names)]
    sets = {"templates": ["a {}"], "classes": classes, "items": items}
    _write(root, "zero_shot/things.json", sets)
    return root


def _write(root: Path, name: str, content: object) -> None:
    path = root / "benchmarks" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def _retuned(base: Path, folder: Path) -> Path:
    """The same image tower with another text tower."""
    folder.mkdir()
    state = load_file(base / "open_clip_model.safetensors")
    torch.manual_seed(1)
    for name, tensor in state.items():
        if not name.startswith("visual.") and tensor.dim() > 1:
            state[name] = torch.randn_like(tensor) * tensor.std()
    save_file(state, folder / "open_clip_model.safetensors")
    (folder / "open_clip_config.json").write_text((base / "open_clip_config.json").read_text())
    return folder


@pytest.fixture(scope="module")
def catalog(
    shipped: RunSettings, data: Path, tiny_clip: Path, mlflow_project: Path, folder: Path
) -> Callable[..., DataCatalog]:
    """What the pipeline reads and writes, with the project's settings but for `changes`."""
    from compo_pipeline.registry import runs as tracking
    from compo_pipeline.registry.tracking_settings import TrackingSettings

    tracking.configure(TrackingSettings(), mlflow_project)
    run_id = tracking.open_run("evaluation", {})
    captions, facts = [], []
    for row in range(IMAGES):
        image, split = f"test/{row}.png", "train" if row == 0 else "test"
        sentences = (f"Cup {row}.png!", "It is new.")
        captions.append(Caption(f"s{row}", image, image, 32, 32, sentences, "x", split))
        digest = hashlib.sha256((data / image).read_bytes()).hexdigest()
        flags = {"repeats_id": False, "repeats_pair": False, "leaks": False}
        facts.append(Fact(row, f"s{row}", image, split, digest, None, 32, 32, 2, 2, 3, **flags))
    trained = _retuned(tiny_clip, folder / "trained")
    foils = [
        Foil(
            *(f"replaced_object-{n}", "replaced_object", "test", "used"),
            *(f"s{n}", f"{n}", f"test/{n}.png", f"{n}", f"cup {n}.png", f"key {n}.png", ""),
            *(("cup", "key"), 0.0, ""),
        )
        for n in range(1, IMAGES)
    ]
    guessable = {
        "state": "guessable",
        "items": 200,
        "text_accuracy": 0.57,
        "text_accuracy_limit": 0.6,
    }
    kind = {"state": "used", "items": 5, "text_accuracy": 0.49, "text_accuracy_limit": 0.523}
    few = {"state": "few", "items": 12, "text_accuracy": None, "text_accuracy_limit": None}
    kinds = {"replaced_object": kind, "half_truth": guessable, "swapped_objects": few}
    split_report = {"left_out": {}, "kinds": kinds}
    judged = {foil.item: "reject" if n == 2 else "accept" for n, foil in enumerate(foils)}
    review = {"builder": 1, "fingerprint": "f00d", "split": "test", "verdicts": judged}
    asked = single_view(captions[0], ("A red cup.",), (from_table(("A red key.", "no")),), "")
    write_rows(folder / "views" / "epoch=00.parquet", [asked], View)

    def build(**changes: Any) -> DataCatalog:
        places = {"root": str(data / "benchmarks"), "images": str(data / "test")}
        inputs: dict[str, Any] = {
            "valid_captions": captions,
            "facts": facts,
            "foils": foils,
            "params:foils": FoilSettings(splits={"test": "test"}),
            "foils_report": {"builder": 1, "fingerprint": "f00d", "splits": {"test": split_report}},
            "foils_review": review,
            "checkpoint": trained,
            "control_checkpoint": tiny_clip,
            "run": {
                "run_id": run_id,
                "method": "clic",
                "label": "CLIC",
                "variant": "mine",
                "seed": 7,
                "rows": "12 that the sample leaves are held out for foils",
            },
            "training_curves": pd.DataFrame({"model": "clic", "step": [0, 1], "loss": [2.0, 1.0]}),
            "params:evaluation": replace(shipped.evaluation, **changes),
            "params:views.split": "train",
            "params:views": shipped.views,
            "params:benchmarks": replace(
                shipped.benchmarks, **places, foils=FoilBenchmarkSettings("test")
            ),
            "params:language.model": "compo_en",
            "params:model": ModelSettings(f"local-dir:{tiny_clip}"),
            "views": folder / "views",
            "params:method": "negclip",
            "params:method_settings": {"views": {}, "objective": {}},
            "params:training": shipped.training,
            "params:counterfactuals": shipped.counterfactuals,
            "params:paths.counterfactuals_state": str(folder),
            "params:generator_settings": {},
            "params:dataset": "toy",
            "params:data": replace(shipped.data, root=data),
            "params:data.root": data,
            "params:site": Site(
                CommandOptions("toy", {"evaluation": {"workers": 2}}),
                {
                    name: str(folder / name / page)
                    for name, page in {
                        "report": "report.html",
                        "data_docs": "index.html",
                        "counterfactuals_preview": "index.html",
                        "foils_review_page": "review.html",
                        "views_preview": "index.html",
                        "wise_ft_report": "wise_ft.html",
                        "attention_report": "test/attention.html",
                        "promotion_report": "promotion.html",
                    }.items()
                },
            ),
        }
        outputs: dict[str, Any] = {
            "scores": RowsDataset(filepath=str(folder / "scores.parquet"), row="Score"),
            "scored_items": RowsDataset(filepath=str(folder / "items.parquet"), row="ScoredItem"),
            "metrics": JSONDataset(filepath=str(folder / "metrics.json")),
            "diagnosis": JsonDataset(
                filepath=str(folder / "diagnosis.json"),
                record="compo_pipeline.evaluation.diagnosis.diagnose.Diagnosis",
            ),
            "comparison": JsonDataset(
                filepath=str(folder / "comparison.json"),
                record="compo_pipeline.evaluation.evaluate.Comparison",
            ),
            "report": FolderDataset(filepath=str(folder / "report")),
        }
        memory = {name: MemoryDataset(value) for name, value in inputs.items()}
        return DataCatalog({**memory, **outputs})

    return build


def _run(catalog: DataCatalog) -> None:
    SequentialRunner().run(register_pipelines()["evaluation"], catalog)


@pytest.fixture(scope="module")
def done(catalog: Callable[..., DataCatalog]) -> DataCatalog:
    """The pipeline after one run."""
    finished = catalog()
    _run(finished)
    return finished


def test_three_models_side_by_side(done: DataCatalog) -> None:
    metrics, comparison = done.load("metrics"), done.load("comparison")
    assert set(metrics) == {"base", "control", "fine_tuned"}
    # The control here is the base itself.
    assert metrics["control"] == metrics["base"]
    scores = done.load("scores")
    assert {score.model for score in scores} == {"base", "control", "clic"}
    # Every figure is the mean of its rows.
    rows = [
        score.correct
        for score in scores
        if (score.model, score.benchmark, score.metric) == ("clic", "sugar_crepe", "accuracy")
    ]
    assert len(rows) == IMAGES + 1 and rows.count(None) == 1
    right = 100 * sum(bool(correct) for correct in rows) / IMAGES
    found = by_model(comparison.rows)["fine_tuned"]
    assert found["sugar_crepe"]["accuracy"]["swap_obj"] == pytest.approx(right, abs=1e-3)
    skipped = {each.benchmark: each.skipped for each in comparison.audits}
    assert skipped == {
        "sugar_crepe": 1,
        "sugar_crepe_pp": 1,
        "zero_shot": 1,
        "foils": 0,
        "retrieval": 0,
    }


def test_training_images_among_the_evaluated_are_reported(done: DataCatalog) -> None:
    found = {o.benchmark: o for o in done.load("comparison").overlaps}
    assert found["sugar_crepe"].same_bytes == found["sugar_crepe"].same_caption == 1
    assert found["retrieval"].same_bytes == 0


def test_foils_are_reported_by_kind_with_what_a_person_said(done: DataCatalog) -> None:
    """Of five items one is false."""
    page = (done.load("report") / "report.html").read_text(encoding="utf-8")
    part = page.partition("<h2>Foils of own captions</h2>")[2].partition("<h2>Diagnosis")[0]
    cells = [re.sub(r"<[^>]*>", " ", cell) for cell in re.findall(r"<td.*?</td>", part, re.DOTALL)]
    kind, count, *shown = [cell.split() for cell in cells]
    assert (kind[-2:], count) == (["replaced", "object"], ["5"])
    right: dict[str, list[bool]] = {}
    for score in done.load("scores"):
        if (score.benchmark, score.metric) == ("foils", "accuracy"):
            right.setdefault(score.model, []).append(bool(score.correct))
    raw = [sum(right[model]) / 5 for model in ("base", "control", "clic")]
    assert [cell[0] for cell in shown[:3]] == [f"{100 * each:.1f}" for each in raw]
    # After the difference: how well texts alone tell the kind, and noise.
    assert shown[4] == ["49.0", "at", "most", "52.3"]
    assert shown[5][0] == "20.0" and shown[5][-2:] == ["of", "5"]
    assert not shown[6:]
    assert (
        "half truth: 200 items, not used, as texts alone may tell too many (foils.text_accuracy): "
        "57%, at most 60%" in part
    )
    assert "swapped objects: 12 items, too few to be used" in part
    assert "Of 5 items, drawn at random and reviewed by a person, 1 are false" in part


def test_the_report_says_what_training_asked_for(done: DataCatalog) -> None:
    """Every caption has a negative with another object; five items show no weakness."""
    page = (done.load("report") / "report.html").read_text(encoding="utf-8")
    part = page.partition("<h2>Diagnosis</h2>")[2].partition("<h2>")[0]
    assert "of 1 captions 1 negatives were read" in part and "<td>100.0%</td>" in part
    assert "No kind of change is missed and seldom asked for." in part


def test_a_review_of_older_items_ends_the_evaluation(done: DataCatalog) -> None:
    review = {**done.load("foils_review"), "fingerprint": "beef"}
    nodes = register_pipelines()["evaluation"].only_nodes("evaluation.write_report")
    read = {name: done.load(name) for name in nodes.inputs() - {"benchmark_items"}}
    read |= {"benchmark_items": None, "foils_review": review}
    older = DataCatalog({name: MemoryDataset(value) for name, value in read.items()})
    with pytest.raises(SettingsError, match="foils_review: the review is one of other items"):
        SequentialRunner().run(nodes, older)


def test_figures_and_report_are_kept_with_the_run(done: DataCatalog) -> None:
    import mlflow

    from compo_pipeline.registry import runs as tracking

    run_id = done.load("run")["run_id"]
    client = mlflow.MlflowClient()
    logged = client.get_run(run_id).data.metrics
    figures = done.load("metrics")
    tuned, base = (figures[role]["retrieval"]["i2t_r1"]["raw"] for role in ("fine_tuned", "base"))
    assert logged["_headline/retrieval.i2t_r1.raw"] == logged["test/retrieval/i2t_r1/raw"] == tuned
    gained = logged["_headline_vs_base/retrieval.i2t_r1.raw"]
    assert gained == pytest.approx(tuned - base, abs=0.002)
    beside = client.get_run(tracking.child_run(run_id, "control")).data.metrics
    control = figures["control"]["retrieval"]["i2t_r1"]["raw"]
    assert beside["_headline/retrieval.i2t_r1.raw"] == control
    assert {name.partition("/")[0] for name in beside} == {"_headline", "test"}
    kept = {file.path for file in client.list_artifacts(run_id, "report")}
    assert {"report/report.html", "report/subtasks.png"} <= kept
    page = (done.load("report") / "report.html").read_text(encoding="utf-8")
    # What a reader needs to make it again.
    assert "kedro run --pipeline=train_eval --env=toy --params evaluation.workers=2" in page
    assert "CLIC, variant mine, seed 7" in page and run_id in page
    assert "12 that the sample leaves are held out for foils" in page


def test_again_without_a_control(
    done: DataCatalog,
    catalog: Callable[..., DataCatalog],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = [score for score in done.load("scores") if score.model != "control"]
    again = catalog()
    # What training leaves where the method is its own control: a folder without a model.
    again["control_checkpoint"] = MemoryDataset(tmp_path)
    _run(again)
    assert set(again.load("metrics")) == {"base", "fine_tuned"}
    rows = again.load("comparison").rows
    assert {each.against for row in rows for each in row.differences} == {"base"}
    assert list(again.load("scores")) == before
    shown = capsys.readouterr().out
    assert "base" in shown and "CLIC" in shown and "against control" not in shown
    assert "no usable image (missing)" in shown
