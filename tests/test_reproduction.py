"""DVC reproduces the demo, and each command of docs/how-to/your-data.md holds, on a few scenes."""

import json
import re
import shutil
import sqlite3
from pathlib import Path

import pytest
from tests.repositories import repository, shell, smoke_sizes

from compo_pipeline.pipeline_registry import TRAIN_EVAL
from compo_scenes.dataset import SceneSettings, write

PROJECT = Path(__file__).parents[1]
SECTIONS = re.compile(r"^## (.*?)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
COMMANDS = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
# Registration acts outside the workspace.
STAGES = [*TRAIN_EVAL[:-3], "train", "evaluate"]
RUN = Path("data/07_model_output/coco/clic/default/seed=0")
# conf/coco is for GPUs and downloaded weights: here the same stages, small.
SMALL = {
    "model": {"name": "scenes-base", "pretrained": None},
    "training": {"workers": 0, "optimizer": {"lr": 2e-3, "lr_start": 2e-3, "lr_end": 2e-3}},
    "evaluation": {"workers": 1, "gallery": 1},
}

pytestmark = pytest.mark.slow


def section(title):
    """The commands of a section of the document."""
    found = dict(SECTIONS.findall((PROJECT / "docs" / "how-to" / "your-data.md").read_text()))
    return "".join(COMMANDS.findall(found[title]))


def ran(output):
    """The stages that a `dvc` command ran."""
    return re.findall(r"Running stage '(?:[^']*:)?(\w+)", output)


def scenes_as_coco(folder, train):
    """Scenes under the names of COCO's splits, and questions about its validation images."""
    if folder.exists():
        shutil.rmtree(folder)
    settings = SceneSettings(train=train, val=1, test=16, items=6, images=40, classified=4)
    rendered = folder.with_name("rendered")
    write(settings, rendered)
    coco, questions = folder / "coco", folder / "benchmarks"
    (coco / "annotations").mkdir(parents=True)
    for ours, theirs in (("train", "train2017"), ("test", "val2017")):
        shutil.move(rendered / ours, coco / theirs)
        shutil.move(
            rendered / "annotations" / f"captions_{ours}.json",
            coco / "annotations" / f"captions_{theirs}.json",
        )
    for name in ("sugar_crepe", "sugar_crepe_pp"):
        shutil.copytree(rendered / "benchmarks" / "test" / name, questions / name)
    for image in (rendered / "benchmarks" / "test" / "images").iterdir():
        shutil.copy(image, coco / "val2017")
    shutil.rmtree(rendered)


def mlflow(folder, query):
    with sqlite3.connect(folder / "mlruns" / "mlflow.db") as store:
        return store.execute(query).fetchall()


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The demo with the sizes of conf/smoke, reproduced: the folder, and what DVC said when."""
    folder = repository(tmp_path_factory.mktemp("demo") / "project", smoke_sizes())
    weight = "conf/base/parameters_methods/clic.yml"
    said = {name: shell("dvc repro", folder) for name in ("first", "second")}
    compute = "training: {microbatch: 8}\nevaluation: {workers: 1}\n"
    (folder / "conf/base/parameters_compute.yml").write_text(compute)
    said["compute"] = shell("dvc status dvc.yaml", folder)
    text = (folder / weight).read_text()
    assert text.count("  objective:\n") == 1
    changed = text.replace("  objective:\n", "  objective:\n    weights: {s_neg: 1.0}\n")
    (folder / weight).write_text(changed)
    said["runs"] = mlflow(folder, "select run_uuid, status from runs")
    said["weight"] = shell("dvc repro", folder)
    return folder, said


def test_demo_is_reproduced_once(demo):
    _, said = demo
    assert ran(said["first"]) == STAGES
    assert ran(said["second"]) == []


def test_one_run_is_recorded_for_all_stages_and_one_within_it_for_the_control(demo):
    _, said = demo
    assert [status for _, status in said["runs"]] == ["FINISHED", "FINISHED"]


def test_devices_and_workers_repeat_no_stage(demo):
    _, said = demo
    assert "up to date" in said["compute"]


def test_a_loss_weight_concerns_training_and_what_follows(demo):
    _, said = demo
    assert ran(said["weight"]) == ["train", "evaluate"]


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """The project as a repository of its own, with data of its own."""
    folder = tmp_path_factory.mktemp("own") / "project"
    repository(folder, {"conf/coco/parameters.yml": SMALL})
    scenes_as_coco(folder / "data" / "01_raw", train=24)
    return folder


@pytest.fixture(scope="module")
def history(clone):
    """Every section of the document, one after the other; what each printed and left behind."""
    said, metrics = {}, {}

    def follow(title, folder):
        said[title] = shell(section(title), folder)
        metrics[title] = json.loads((clone / RUN / "metrics.json").read_text())

    shell(section("Record the data"), clone)
    follow("Train", clone)
    said["again"] = shell("dvc repro recipes/dvc.yaml:evaluate@coco", clone)
    follow("Go on elsewhere", clone)
    said["registration"] = shell(
        "kedro run --env=coco --pipeline=registration", clone.parent / "elsewhere"
    )
    follow("Change something", clone)
    said["older"] = hashes(clone)
    scenes_as_coco_more(clone)
    changed, back = split(section("Change the data, and go back"), "git checkout")
    said["changed"] = shell(changed, clone)
    said["newer"] = hashes(clone)
    said["back"] = shell(back, clone)
    said["restored"] = hashes(clone)
    said["status"] = shell("dvc repro recipes/dvc.yaml:evaluate@coco", clone)
    return said, metrics


def split(commands, at):
    place = commands.index(at)
    return commands[:place], commands[place:]


def scenes_as_coco_more(clone):
    """More training scenes; the questions stay as they were."""
    raw = clone / "data" / "01_raw"
    fresh = clone.parent / "fresh"
    scenes_as_coco(fresh, train=32)
    shutil.rmtree(raw / "coco")
    shutil.move(fresh / "coco", raw / "coco")


def hashes(clone):
    """What data and model weigh, file by file."""
    kept = [clone / "data/01_raw/coco/annotations/captions_train2017.json"]
    kept.append(clone / "data/06_models/coco/clic/default/seed=0/checkpoint")
    files = [file for path in kept for file in ([path] if path.is_file() else path.rglob("*"))]
    return {str(file.relative_to(clone)): file.read_bytes() for file in files if file.is_file()}


def test_training_runs_every_stage_once_and_then_none(history):
    said, _ = history
    assert ran(said["Train"]) == STAGES
    assert ran(said["again"]) == []


def test_another_clone_pulls_it_all_and_has_nothing_to_do(history, clone):
    said, _ = history
    assert ran(said["Go on elsewhere"]) == []
    elsewhere = clone.parent / "elsewhere"
    assert (elsewhere / RUN / "scores.parquet").is_file()
    assert any((elsewhere / "data" / "01_raw" / "coco" / "train2017").iterdir())


def test_a_pulled_model_is_registered_in_a_run_that_says_where_it_came_from(history, clone):
    elsewhere = clone.parent / "elsewhere"
    origin = json.loads((elsewhere / RUN / "run.json").read_text())["run_id"]
    tags = mlflow(elsewhere, "select value from tags where key = 'restored_from'")
    assert tags == [(origin,)]


def test_an_experiment_on_a_loss_weight_runs_training_and_what_follows(history):
    said, metrics = history
    assert ran(said["Change something"]) == ["train", "evaluate"]
    assert metrics["Change something"] != metrics["Train"]
    assert "metrics.json" in said["Change something"]


def test_changed_data_runs_the_chain_again(history):
    said, _ = history
    assert ran(said["changed"])[:2] == ["ingest", "validation"]
    assert said["newer"] != said["older"]


def test_an_older_commit_brings_older_data_and_model_back(history):
    said, _ = history
    assert said["restored"] == said["older"]
    assert ran(said["status"]) == []
