"""Several stages log into one run, also after failures and restores."""

import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import mlflow
import pytest
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

from compo_pipeline.core.settings import SettingsError
from compo_pipeline.registry import runs as tracking
from compo_pipeline.registry.tracking_settings import TrackingSettings

Configure = Callable[[str], None]


@pytest.fixture
def client(configure: Configure) -> mlflow.MlflowClient:
    configure("tracking")
    return mlflow.MlflowClient()


def test_the_default_store_is_in_the_project(
    mlflow_project: Path, client: mlflow.MlflowClient
) -> None:
    run_id = tracking.open_run("first", {"method": "clic"})
    assert mlflow.get_tracking_uri() == f"sqlite:///{mlflow_project}/mlruns/mlflow.db"
    assert (mlflow_project / "mlruns" / "mlflow.db").is_file()
    run = client.get_run(run_id)
    assert run.data.tags["method"] == "clic"
    with tracking.adopt(run_id) as record:
        record.document({"clic": {"weight": 0.5}}, "parameters.yaml")
    documents = list((mlflow_project / "mlruns" / "artifacts").rglob("parameters.yaml"))
    assert [path.read_text() for path in documents] == ["clic:\n  weight: 0.5\n"]


@pytest.mark.slow
def test_two_first_runs_of_a_fresh_folder_share_a_store(tmp_path: Path) -> None:
    """Both processes build the database at the same moment: as soon as both are ready."""
    program = (
        "import os, sys, time, mlflow\nfrom pathlib import Path\n"
        "import mlflow.store.tracking.sqlalchemy_store\n"
        "from compo_pipeline.registry import runs as tracking\n"
        "from compo_pipeline.registry.tracking_settings import TrackingSettings\n"
        "folder = Path(sys.argv[1])\n(folder / f'ready{os.getpid()}').touch()\n"
        "while len(list(folder.glob('ready*'))) < 2:\n    time.sleep(0.01)\n"
        "tracking.configure(TrackingSettings(), folder)\nprint(tracking.experiment_id())\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    experiments = [process.communicate(timeout=300)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0]
    assert experiments[0] == experiments[1] == "1\n"


@pytest.fixture
def elsewhere(configure: Configure) -> Iterator[None]:
    """Another store for one test."""
    yield
    configure("tracking")


@pytest.mark.usefixtures("elsewhere")
def test_a_store_that_cannot_be_used_is_named_without_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    away = TrackingSettings(uri="http://me:secret@127.0.0.1:1")
    # No store of MLflow's has that name.
    unknown = TrackingSettings(uri="postgres://me:secret@host/db")
    for settings in (away, unknown):
        with pytest.raises(SettingsError, match=r"tracking\.uri: cannot use \w+://\*\*\*@") as told:
            tracking.configure(settings, tmp_path)
        assert "secret" not in told.value.message
    assert list(tmp_path.iterdir()) == [], "nothing is left in the project"
    tracking.connect(away, tmp_path)
    with pytest.raises(SettingsError, match=r"tracking\.uri: cannot use http://\*\*\*@") as told:
        tracking.registered_model("compo-clip")
    assert "secret" not in told.value.message


@pytest.mark.usefixtures("elsewhere")
def test_a_database_in_a_file_has_its_artefacts_beside_it(tmp_path: Path) -> None:
    settings = TrackingSettings(uri=f"sqlite:///{tmp_path / 'named.db'}")
    tracking.configure(settings, tmp_path / "project")
    with tracking.adopt(tracking.open_run("first", {})) as record:
        record.document({}, "nothing.json")
    assert list((tmp_path / "artifacts").rglob("nothing.json"))


@pytest.mark.usefixtures("elsewhere")
def test_a_copied_project_writes_beside_its_own_store(
    mlflow_project: Path, configure: Configure, tmp_path: Path
) -> None:
    configure("copied")
    own = TrackingSettings(experiment="copied")
    run_id = tracking.open_run("first", {})
    registry = mlflow.MlflowClient()
    registry.create_registered_model("copied")
    source = f"{(mlflow_project / 'mlruns' / 'artifacts').as_uri()}/weights"
    registry.create_model_version("copied", source)
    copy = shutil.copytree(mlflow_project, tmp_path / "a copy")
    tracking.configure(own, copy)
    for each in (run_id, tracking.open_run("second", {})):
        with tracking.adopt(each) as record:
            record.document({}, "of_the_copy.json")
    assert len(list(copy.rglob("of_the_copy.json"))) == 2
    assert not list(mlflow_project.rglob("of_the_copy.json"))
    version = mlflow.MlflowClient().get_model_version("copied", "1")
    assert version.source == f"{(copy / 'mlruns' / 'artifacts').as_uri()}/weights"


@pytest.mark.usefixtures("elsewhere")
def test_a_kill_while_the_database_is_built_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(engine: object) -> None:
        raise KeyboardInterrupt

    settings = TrackingSettings(uri=f"sqlite:///{tmp_path / 'new.db'}")
    monkeypatch.setattr("mlflow.store.db.utils._upgrade_db", killed)
    with pytest.raises(KeyboardInterrupt):
        tracking.configure(settings, tmp_path)
    assert not (tmp_path / "new.db").exists()
    monkeypatch.undo()
    monkeypatch.setattr(SqlAlchemyStore, "_engine_map", {})  # as in another process
    tracking.configure(settings, tmp_path)
    assert tracking.open_run("first", {})


def test_a_finished_run_keeps_its_end(client: mlflow.MlflowClient) -> None:
    run_id = tracking.open_run("duration", {})
    with tracking.adopt(run_id):
        pass
    ended = client.get_run(run_id).info.end_time
    time.sleep(0.01)
    with tracking.adopt(run_id) as record:
        record.metrics({"later": 1.0})
    run = client.get_run(run_id)
    assert (run.info.status, run.info.end_time) == ("FINISHED", ended)
    # A failed one goes on.
    with pytest.raises(RuntimeError, match="stop"), tracking.adopt(run_id):
        raise RuntimeError("stop")
    failed = client.get_run(run_id).info.end_time
    time.sleep(0.01)
    with tracking.adopt(run_id):
        pass
    assert client.get_run(run_id).info.end_time > failed > ended


def test_a_run_has_a_command_and_an_address_that_show_it(client: mlflow.MlflowClient) -> None:
    run_id = tracking.open_run("address", {})
    command, url = tracking.charts(run_id)
    assert f"/experiments/{tracking.experiment_id()}/runs/{run_id}/" in url
    assert tracking.charts("0" * 32) == []
    store = shlex.split(command)[-1]
    assert mlflow.MlflowClient(store).get_run(run_id).info.run_id == run_id


@pytest.mark.parametrize("deleted", [False, True])
def test_unknown_run_is_restored_once(client: mlflow.MlflowClient, deleted: bool) -> None:
    foreign = "0123456789abcdef0123456789abcdef"
    if deleted:
        foreign = tracking.open_run("deleted", {})
        client.delete_run(foreign)
    with tracking.adopt(foreign) as evaluation:
        evaluation.metrics({"itt": 0.7})
    with tracking.adopt(foreign) as registration:
        registration.tags({"version": "1"})
    assert evaluation.run_id == registration.run_id != foreign
    run = client.get_run(evaluation.run_id)
    assert run.data.tags["restored_from"] == foreign
    assert run.data.metrics == {"itt": 0.7}


def test_a_run_within_a_run_is_opened_once(client: mlflow.MlflowClient) -> None:
    foreign = "76543210fedcba9876543210fedcba98"
    with tracking.adopt(foreign) as outer:
        inner = tracking.child_run(outer.run_id, "control")
        with tracking.adopt(inner) as own:
            own.metrics({"loss": 0.5})
    assert tracking.child_run(outer.run_id, "control") == inner != outer.run_id
    with tracking.adopt(foreign) as again:
        assert again.run_id == outer.run_id
    run = client.get_run(inner)
    assert run.data.tags["mlflow.parentRunId"] == outer.run_id
    assert (run.info.status, run.data.metrics) == ("FINISHED", {"loss": 0.5})


def test_params_are_flat_and_never_crash_a_resumed_run(client: mlflow.MlflowClient) -> None:
    run_id = tracking.open_run("params", {})
    with tracking.adopt(run_id) as record:
        record.params({"training": {"lr": 1e-3, "betas": [0.9, 0.98]}, "seed": 0, "none": None})
    with tracking.adopt(run_id) as record:
        record.params({"training": {"lr": 2e-3, "betas": [0.9, 0.98]}, "new": True})
    run = client.get_run(run_id)
    first = {"training.lr": "0.001", "training.betas": "[0.9, 0.98]", "seed": "0", "none": "None"}
    assert run.data.params == {**first, "new": "True"}
    changed = {k: v for k, v in run.data.tags.items() if k.startswith("changed.")}
    assert changed == {"changed.training.lr": "0.002"}


def test_params_beyond_the_limits(client: mlflow.MlflowClient) -> None:
    run_id = tracking.open_run("limits", {})
    many = {f"key{number}": number for number in range(250)}
    with tracking.adopt(run_id) as record:
        record.params({"many": many, "long": "x" * 10_000, "odd (name)!": 1, "empty": {}})
        record.params({"many": many, "long": "x" * 10_000})
    params = client.get_run(run_id).data.params
    assert len(params) == 253
    assert params["long"] == "x" * 6000
    assert params["odd _name__"] == "1"
    assert params["empty"] == "{}"


def test_metrics_keep_numbers_and_curves_their_steps(client: mlflow.MlflowClient) -> None:
    run_id = tracking.open_run("metrics", {})
    rows = [{"step": step, "loss": 1 / (1 + step), "rate": float("nan")} for step in range(1500)]
    rows[-1]["val/loss"] = 0.5
    with tracking.adopt(run_id) as record:
        record.metrics({"base": {"sugar_crepe": {"swap": 0.6, "n": 3, "which": "x", "ci": [0, 1]}}})
        record.curves(rows, "train")
    metrics = client.get_run(run_id).data.metrics
    assert metrics["base/sugar_crepe/swap"] == 0.6
    assert "base/sugar_crepe/which" not in metrics
    assert "base/sugar_crepe/ci" not in metrics
    assert "val/loss" in metrics and "train/val/loss" not in metrics
    history = client.get_metric_history(run_id, "train/loss")
    assert [point.step for point in history] == list(range(1500))
    assert history[3].value == 0.25


def test_git_state_of_a_run(
    client: mlflow.MlflowClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outside = client.get_run(tracking.open_run("outside", {}))
    assert outside.data.tags["git_commit"] == "unknown"
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    (tmp_path / "code.py").write_text("x = 1\n")
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *arguments], check=True)
    commit = subprocess.run(
        [*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()

    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "metrics.json").write_text("{}")  # a run's own
    clean = client.get_run(tracking.open_run("clean", {})).data.tags
    (tmp_path / "code.py").write_text("x = 2\n")
    dirty = client.get_run(tracking.open_run("dirty", {})).data.tags

    assert (clean["git_commit"], clean["git_dirty"]) == (commit, "false")
    assert (dirty["git_commit"], dirty["git_dirty"]) == (commit, "true")


def test_later_failure_is_noted(client: mlflow.MlflowClient) -> None:
    run_id = tracking.open_run("later", {})
    with tracking.adopt(run_id):
        pass
    tracking.mark_failed(run_id, ValueError("no images"))
    run = client.get_run(run_id)
    assert run.info.status == "FAILED"
    assert run.data.tags["error"] == "ValueError: no images"
    tracking.mark_failed("f" * 32, ValueError("of a run nobody knows"))
