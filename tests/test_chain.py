"""The whole chain on a tiny world, in a process of its own that cannot reach any network."""

import json
import os
import sqlite3
import subprocess
import sys
import textwrap
from contextlib import chdir

import pytest
import yaml
from kedro.framework.project import pipelines
from kedro.framework.session import KedroSession

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
    print(f"## {name}")
    KedroCLI(Path.cwd())(["run", "--env=smoke", f"--pipeline={name}"], standalone_mode=False)
"""


@pytest.fixture(scope="module")
def attempts(workspace):
    """Runs the chain and a promotion; the file that lists what they tried to reach."""
    (workspace / "guard").mkdir()
    (workspace / "guard" / "sitecustomize.py").write_text(textwrap.dedent(GUARD))
    reached = workspace / "attempts.txt"
    (workspace / "home").mkdir()
    output = run(workspace, "train_eval", "promotion")
    (workspace / "promotion.txt").write_text(output.partition("## promotion\n")[2])
    return reached


def run(workspace, *names):
    """Runs pipelines under the guard, one after the other; their output."""
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("MLFLOW_")},
        "PYTHONPATH": str(workspace / "guard"),
        "PYTHONUNBUFFERED": "1",
        "ATTEMPTS": str(workspace / "attempts.txt"),
        "HOME": str(workspace / "home"),
    }
    done = subprocess.run(
        [sys.executable, "-c", RUNS, *names],
        cwd=workspace,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    return done.stdout


@pytest.fixture(scope="module")
def catalog(bootstrapped, workspace, attempts):
    with chdir(workspace), KedroSession.create(workspace, env="smoke") as session:
        yield session.load_context().catalog


def test_guard_itself_works(attempts, workspace):
    code = "import socket; socket.create_connection(('127.0.0.1', 9))"
    environment = {
        "PYTHONPATH": str(workspace / "guard"),
        "ATTEMPTS": str(workspace / "proof.txt"),
    }
    refused = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, check=False
    )
    assert refused.returncode != 0
    assert "127.0.0.1" in (workspace / "proof.txt").read_text()


def test_chain_runs_without_trying_any_network(attempts):
    tried = attempts.read_text() if attempts.exists() else ""
    assert tried == ""


def test_every_table_and_folder_is_there(catalog):
    both = pipelines["train_eval"] + pipelines["promotion"]
    entries = {name for name in both.datasets() if ":" not in name} & set(catalog)
    assert {"captions", "checkpoint", "report", "promotion_report"} < entries
    assert {name for name in entries if not catalog.exists(name)} == set()


def test_base_control_and_method_stand_side_by_side(catalog):
    metrics = catalog.load("metrics")
    assert set(metrics) == {"base", "control", "fine_tuned"}


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


def test_registered_version_is_the_exported_folder(catalog, workspace):
    registered = catalog.load("registered")
    assert registered["name"] == "compo-clip-smoke"
    config = json.loads((catalog.load("export") / "open_clip_config.json").read_text())
    assert "model_cfg" in config


def test_promotion_takes_the_scores_that_the_evaluation_kept(catalog, workspace, attempts):
    with sqlite3.connect(workspace / "mlruns" / "mlflow.db") as store:
        query = "select alias, version from registered_model_aliases where name = ?"
        aliases = dict(store.execute(query, ("compo-clip-smoke",)).fetchall())
    assert aliases == {"challenger": 1, "champion": 1}
    page = (catalog.load("promotion_report") / "promotion.md").read_text()
    assert "promoted" in page and "FAILED" not in page
    output = attempts.with_name("promotion.txt").read_text()
    assert output and "Scoring" not in output


@pytest.mark.slow
def test_a_study_leaves_a_run_per_trial_values_that_run_and_a_page(catalog, workspace, attempts):
    run(workspace, "tuning")
    assert not attempts.exists()
    study = catalog.load("study")
    runs, parents = runs_of(workspace)
    assert max(map(parents.count, parents)) == 4
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
    done = subprocess.run(
        [
            *("kedro", "run", "--env=smoke", "--pipeline=train_eval"),
            f"--params=data.root=s3://{bucket.name}/smoke",
        ],
        cwd=elsewhere,
        env={**os.environ, **object_storage},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    assert {name for name in local if (elsewhere / name).read_bytes() != local[name]} == set()
