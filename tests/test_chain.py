"""The whole chain on a tiny world, in a process of its own that cannot reach any network."""

import json
import os
import sqlite3
import subprocess
import sys
import textwrap

import pytest
from kedro.framework.project import pipelines
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project

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


@pytest.fixture(scope="module")
def attempts(workspace):
    """Runs the chain; the file that holds what it tried to reach."""
    (workspace / "guard").mkdir()
    (workspace / "guard" / "sitecustomize.py").write_text(textwrap.dedent(GUARD))
    reached = workspace / "attempts.txt"
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("MLFLOW_")},
        "PYTHONPATH": str(workspace / "guard"),
        "ATTEMPTS": str(reached),
        "HOME": str(workspace / "home"),
    }
    (workspace / "home").mkdir()
    command = [sys.executable, "-m", "kedro", "run", "--env=smoke", "--pipeline=train_eval"]
    done = subprocess.run(
        command,
        cwd=workspace,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return reached


@pytest.fixture
def catalog(workspace, attempts, monkeypatch):
    monkeypatch.chdir(workspace)
    bootstrap_project(workspace)
    with KedroSession.create(workspace, env="smoke") as session:
        return session.load_context().catalog


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
    entries = {name for name in pipelines["train_eval"].datasets() if ":" not in name}
    assert {name for name in entries if not catalog.exists(name)} == set()


def test_base_control_and_method_stand_side_by_side(catalog):
    metrics = catalog.load("metrics")
    assert set(metrics) == {"base", "control", "fine_tuned"}


def test_one_run_holds_the_whole_chain(catalog, workspace):
    run = catalog.load("run")
    with sqlite3.connect(workspace / "mlruns" / "mlflow.db") as store:
        runs = store.execute("select run_uuid, status from runs").fetchall()
    assert runs == [(run["run_id"], "FINISHED")]


def test_nothing_is_lost_between_source_and_valid_captions(catalog):
    captions = {row.sample_id for row in catalog.load("captions")}
    valid = {row.sample_id for row in catalog.load("valid_captions")}
    rejected = {row.sample_id for row in catalog.load("quarantine")}
    assert captions <= valid | rejected


def test_registered_version_is_the_exported_folder(catalog, workspace):
    registered = catalog.load("registered")
    assert registered["name"] == "compo-clip"
    config = json.loads((catalog.load("export") / "open_clip_config.json").read_text())
    assert "model_cfg" in config
