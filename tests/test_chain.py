"""The whole chain on a tiny world, in a process of its own that cannot reach any network."""

import os
import re
import sqlite3
import subprocess
import sys
import textwrap
from collections import defaultdict
from contextlib import chdir
from statistics import fmean

import mlflow
import pytest
import yaml
from kedro.framework.project import pipelines
from kedro.framework.session import KedroSession
from kedro.pipeline import Pipeline
from tests.processes import ran

PIPELINES = ("train_eval", "promotion", "attention", "wise_ft")
# Runs in every Python process of the chain, workers included. An attempt is written down before
# it is refused: a library that swallows the error is caught too. Loopback is no exception.
GUARD = """
import os, socket, sys

def guard(event, arguments):
    if event == "socket.getaddrinfo":
        target = arguments[0]
    elif event in ("socket.bind", "socket.connect", "socket.sendto"):
        if arguments[0].family == socket.AF_UNIX:
            return
        target = arguments[1]
    else:
        return
    # urllib3 binds to a free port of ::1, and closes it, to learn whether there is IPv6.
    if event != "socket.bind":
        with open(os.environ["ATTEMPTS"], "a") as attempts:
            attempts.write(f"{event} {target}\\n")
    raise PermissionError(f"{event} {target}: this process has no network")

sys.addaudithook(guard)
"""
# One process for all pipelines, as to import the libraries takes as long as to run one.
RUNS = """
import sys
from pathlib import Path
from kedro.framework.cli.cli import KedroCLI

for name in sys.argv[1:]:
    command = ["run", "--env=smoke", *(f"--{option}" for option in name.split())]
    try:
        KedroCLI(Path.cwd())(command)
    except SystemExit as ended:
        print(f"## {ended.code or 0}")
"""


@pytest.fixture(scope="module")
def said(workspace):
    """Runs the chain and what follows it; exit status and output of each."""
    (workspace / "guard").mkdir()
    (workspace / "guard" / "sitecustomize.py").write_text(textwrap.dedent(GUARD))
    (workspace / "home").mkdir()
    refused = "pipelines=promotion params=promotion.gate.items=1000"
    chain, *others = (f"pipelines={name}" for name in PIPELINES)
    found = run(workspace, chain, refused, *others)
    return dict(zip((PIPELINES[0], "refused", *PIPELINES[1:]), found, strict=True))


@pytest.fixture(scope="module")
def attempts(workspace, said):
    """The file that lists what the runs tried to reach."""
    return workspace / "attempts.txt"


def run(workspace, *options):
    """Runs pipelines under the guard, one after the other; exit status and output of each."""
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("MLFLOW_")},
        "PYTHONPATH": str(workspace / "guard"),
        "PYTHONUNBUFFERED": "1",
        "ATTEMPTS": str(workspace / "attempts.txt"),
        "HOME": str(workspace / "home"),
    }
    done = subprocess.run(
        [sys.executable, "-c", RUNS, *options],
        cwd=workspace,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    *parts, _ = re.split(r"^## (\d+)$", done.stdout, flags=re.MULTILINE)
    assert done.returncode == 0 and len(parts) == 2 * len(options), done.stdout[-6000:]
    return [(int(status), output) for output, status in zip(parts[::2], parts[1::2], strict=True)]


@pytest.fixture(scope="module")
def catalog(bootstrapped, workspace, said):
    assert [status for status, _ in said.values()] == [0, 1, 0, 0, 0], said
    with chdir(workspace), KedroSession.create(workspace, env="smoke") as session:
        yield session.load_context().catalog


@pytest.fixture(scope="module")
def client(workspace, said):
    uri = f"sqlite:///{workspace}/mlruns/mlflow.db"
    return mlflow.MlflowClient(uri, uri)


def test_guard_itself_works(attempts, workspace):
    code = "import socket; socket.create_connection(('127.0.0.1', 9))"
    environment = {"PYTHONPATH": str(workspace / "guard"), "ATTEMPTS": str(workspace / "proof.txt")}
    refused = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, check=False
    )
    assert refused.returncode != 0
    assert "127.0.0.1" in (workspace / "proof.txt").read_text()


def test_chain_runs_without_trying_any_network(attempts):
    tried = attempts.read_text() if attempts.exists() else ""
    assert tried == ""


def test_every_table_and_folder_is_there(catalog):
    ran = sum((pipelines[name] for name in PIPELINES), Pipeline([]))
    entries = {name for name in ran.datasets() if ":" not in name} & set(catalog)
    assert {"captions", "checkpoint", "report", "promotion_report"} < entries
    assert {name for name in entries if not catalog.exists(name)} == set()


def test_every_figure_of_base_control_and_method_is_the_mean_of_its_items(catalog):
    right = defaultdict(list)
    for score in catalog.load("scores"):
        if score.correct is not None:
            place = score.model, score.benchmark, score.metric, score.subtask
            right[place].append(score.correct)
    comparison, checked = catalog.load("comparison"), set()
    for row in comparison.rows:
        for role, model in comparison.models.items():
            if own := right.get((model.name, row.benchmark, row.metric, row.name)):
                assert row.values[role].value == pytest.approx(100 * fmean(own), abs=1e-3)
                checked.add((role, row.benchmark))
    roles, names = {"base", "control", "fine_tuned"}, {"sugar_crepe", "sugar_crepe_pp", "retrieval"}
    assert checked >= {(role, name) for role in roles for name in names}
    assert set(catalog.load("metrics")) == roles


def test_figures_and_pages_are_kept_with_the_run(catalog, client):
    run_id = catalog.load("run")["run_id"]
    logged, figures = client.get_run(run_id).data.metrics, catalog.load("metrics")
    tuned, base = (figures[role]["retrieval"]["i2t_r1"]["raw"] for role in ("fine_tuned", "base"))
    assert logged["_headline/retrieval.i2t_r1.raw"] == logged["test/retrieval/i2t_r1/raw"] == tuned
    gained = logged["_headline_vs_base/retrieval.i2t_r1.raw"]
    assert gained == pytest.approx(tuned - base, abs=0.002)
    (beside,) = client.search_runs(
        [client.get_run(run_id).info.experiment_id], f"tags.`mlflow.parentRunId` = '{run_id}'"
    )
    control = figures["control"]["retrieval"]["i2t_r1"]["raw"]
    assert beside.data.metrics["_headline/retrieval.i2t_r1.raw"] == control
    kept = {file.path for file in client.list_artifacts(run_id)}
    assert {"report", "wise_ft", "attention"} <= kept
    page = (catalog.load("report") / "report.html").read_text(encoding="utf-8")
    # What a reader needs to make it again.
    assert "kedro run --pipeline=train_eval --env=smoke" in page and run_id in page


def test_every_ratio_of_the_mixture_is_scored(catalog, client):
    table = catalog.load("wise_ft")
    assert set(table.measured_on) == {"reported", "validation"}
    means = table[(table.benchmark == "roles") & (table.measured_on == "reported")]
    assert set(means.name) == {"composition", "retrieval", "zero_shot"}
    composition = means[means.name == "composition"]
    assert list(composition.ratio) == [k / 10 for k in range(11)]
    # The ends are the base and the fine-tuned model.
    for ratio, role in ((0.0, "base"), (1.0, "fine_tuned")):
        (end,) = composition[composition.ratio == ratio].value
        figure = catalog.load("metrics")[role]["sugar_crepe_pp"]["itt"]["average"]
        assert end == pytest.approx(figure, abs=1e-3)
    history = client.get_metric_history(catalog.load("run")["run_id"], "wise_ft/composition")
    assert [point.value for point in history] == pytest.approx(list(composition.value))


def test_attention_to_phrases_of_a_split_is_drawn(catalog, approved):
    approved("attention", (catalog.load("attention_report") / "test/attention.html").read_text())


def runs_of(workspace):
    """Status of every MLflow run by its id, and the parent of each that has one."""
    with sqlite3.connect(workspace / "mlruns" / "mlflow.db") as store:
        runs = dict(store.execute("select run_uuid, status from runs").fetchall())
        parents = store.execute("select value from tags where key = 'mlflow.parentRunId'")
        return runs, sorted(parent for (parent,) in parents)


def test_one_run_holds_the_whole_chain_and_the_control_is_its_child(catalog, workspace):
    run_id = catalog.load("run")["run_id"]
    runs, parents = runs_of(workspace)
    assert parents == [run_id] and len(runs) == 2 and run_id in runs
    assert set(runs.values()) == {"FINISHED"}


def test_nothing_is_lost_between_source_and_valid_captions(catalog):
    captions = {row.sample_id for row in catalog.load("captions")}
    valid = {row.sample_id for row in catalog.load("valid_captions")}
    rejected = {row.sample_id for row in catalog.load("quarantine")}
    assert captions <= valid | rejected


def test_a_refusal_is_an_error_of_one_line(said):
    status, output = said["refused"]
    assert status == 1 and "FAILED" in output and "Traceback" not in output
    (error,) = [line for line in output.splitlines() if line.startswith("Error: ")]
    assert "version 1: refused. Failed: composition" in error


def test_promotion_takes_the_scores_that_the_evaluation_kept(catalog, client, said):
    model = client.get_registered_model("compo-clip-smoke")
    assert {k: int(v) for k, v in model.aliases.items()} == {"challenger": 1, "champion": 1}
    page = (catalog.load("promotion_report") / "promotion.md").read_text()
    assert "promoted" in page and "FAILED" not in page
    assert "encoding" not in said["promotion"][1] and "encoding" in said["train_eval"][1]


@pytest.mark.slow
def test_a_study_leaves_values_that_run_and_a_page(catalog, workspace, attempts):
    assert [status for status, _ in run(workspace, "pipelines=tuning")] == [0]
    assert not attempts.exists()
    study = catalog.load("study")
    runs, _ = runs_of(workspace)
    assert set(runs.values()) == {"FINISHED"}
    assert sum(study["trials"].values()) == 4
    assert study["trials"].keys() <= {"complete", "pruned"}
    folder = workspace / "data" / "07_model_output" / "smoke" / "clic" / "default" / "seed=0"
    page = (catalog.load("tuning_report") / "study.html").read_text()
    assert "Confirmation on the reported items" in page
    best = folder / "tuning" / "best_params.yml"
    assert best.exists() == (study["best"] is not None)
    if study["best"] is not None:
        given = yaml.safe_load(best.read_text())
        assert given["variants"]["clic"] == {"default+tuned": study["best"]["values"]}
    trials = workspace / "data" / "06_models" / "smoke" / "clic" / "default" / "seed=0" / "tuning"
    assert not [path for path in (trials / "trials").rglob("*") if path.is_file()]


@pytest.mark.slow
def test_data_on_object_storage_give_the_same_bytes(
    attempts, workspace, new_workspace, object_storage, bucket
):
    raw = workspace / "data" / "01_raw" / "smoke"
    files = (path for path in raw.rglob("*") if path.is_file())
    bucket.put({f"smoke/{path.relative_to(raw)}": path.read_bytes() for path in files})
    kinds = ("*.parquet", "*.safetensors", "metrics.json", "curves.csv")
    local = {
        path.relative_to(workspace).as_posix(): path.read_bytes()
        for kind in kinds
        for path in (workspace / "data").rglob(kind)
        if not {"resume", "tower_features"} & set(path.parts)
    }
    assert len(local) > 12
    elsewhere = new_workspace()
    command = ["kedro", "run", "--env=smoke", "--pipeline=train_eval"]
    given = f"--params=data.root=s3://{bucket.name}/smoke"
    done = ran([*command, given], elsewhere, **object_storage)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert {name for name in local if (elsewhere / name).read_bytes() != local[name]} == set()
