"""Every session checks its configuration first, in the project itself."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from kedro.framework.hooks import _create_hook_manager
from kedro.framework.project import pipelines
from kedro.framework.session import KedroSession
from kedro.io import DataCatalog, MemoryDataset
from kedro.pipeline import Pipeline, node, pipeline
from kedro.runner import SequentialRunner
from pydantic_core import to_jsonable_python

from compo_pipeline.core.files import DamagedFileError, DiskFullError, atomic_file
from compo_pipeline.core.provenance import CommandOptions
from compo_pipeline.core.records import Caption, View
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.core.table_files import write_rows
from compo_pipeline.data.catalog import FolderDataset, RowsDataset
from compo_pipeline.methods.views import EpochViews
from compo_pipeline.project.hooks import ProjectHooks
from compo_pipeline.registry import runs as tracking
from compo_pipeline.registry.tracking_settings import TrackingSettings


@pytest.fixture
def parameters(bootstrapped, monkeypatch):
    """Parameters of a session, as its nodes would get them."""
    monkeypatch.chdir(bootstrapped)
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        # Set, then deleted: the test's end restores what stood there, also where nothing did.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)

    def load(env="base", **runtime):
        with KedroSession.create(bootstrapped, env=env, runtime_params=runtime) as session:
            return to_jsonable_python(session.load_context().params)

    return load


def test_one_nested_override_keeps_its_siblings(parameters):
    plain = parameters()
    changed = parameters(data={"columns": {"caption": "text"}})
    assert changed["data"]["columns"] == {**plain["data"]["columns"], "caption": "text"}
    # `command` says what was typed, for commands that are shown to the user.
    own = dict.fromkeys(("data", "command", "site"))
    assert {**changed, **own} == {**plain, **own}
    assert changed["site"] == {**plain["site"], "command": changed["command"]}
    assert changed["command"]["params"] == {"data": {"columns": {"caption": "text"}}}


def test_runtime_values_beat_the_environment_and_null_means_none(parameters):
    coco = parameters("coco", model={"name": "scenes-base", "pretrained": None}, seed=3)
    assert coco["model"]["name"] == "scenes-base"
    assert coco["model"]["pretrained"] is None
    assert coco["paths"]["resume"].endswith("coco/clic/default/seed=3/resume")
    report = coco["site"]["pages"]["report"]
    assert report.endswith("coco/clic/default/seed=3/report/report.html")


def test_relative_paths_start_from_the_project_wherever_the_command_was_typed(
    parameters, project, tmp_path
):
    os.chdir(tmp_path)
    parameters()
    assert Path.cwd() == project


def test_hub_is_reached_only_for_weights_that_live_there_and_as_the_user_set(
    parameters, monkeypatch
):
    parameters(model={"name": "scenes-base"})
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    monkeypatch.delenv("HF_HUB_OFFLINE")
    parameters(model={"name": "ViT-B-32", "pretrained": "openai"})
    assert os.environ["HF_HUB_OFFLINE"] == "0"
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    parameters(model={"name": "hf-hub:somebody/model"})
    assert os.environ["HF_HUB_OFFLINE"] == "1"


@pytest.fixture
def failed(bootstrapped, tmp_path):
    """What the hook makes of a pipeline's error; its entries `captions` and `views` exist."""
    hooks = ProjectHooks()
    hooks._context = SimpleNamespace(command=CommandOptions("smoke", {"seed": 1}))
    entries = {
        "captions": RowsDataset(filepath=str(tmp_path / "captions.parquet"), row="Caption"),
        "views": FolderDataset(filepath=str(tmp_path / "views")),
        "params:seed": MemoryDataset(1),
    }
    run = pipeline([node(lambda *inputs: None, list(entries), "nothing", name="reader")])

    def show(action):
        with pytest.raises(Exception) as raised:
            action(entries)
        hooks.on_pipeline_error(raised.value, run, DataCatalog(entries))

    return show


def test_a_damaged_table_names_its_file_and_the_command_that_writes_it(failed, tmp_path):
    path = tmp_path / "captions.parquet"

    def load(entries):
        entries["captions"].save([Caption("1", "1", "1.jpg", 8, 8, ("a cube",), "test", "train")])
        path.write_bytes(path.read_bytes().replace(b"a cube", b"a cubf", 1))
        entries["captions"].load()

    again = "captions.parquet is damaged.*kedro run --pipeline=ingest --env=smoke --params seed=1"
    with pytest.raises(SettingsError, match=again):
        failed(load)


def test_damaged_views_name_the_pipeline_of_their_folder(failed, tmp_path):
    def read(_):
        file = tmp_path / "views" / "epoch=00.parquet"
        write_rows(file, [], View)
        file.write_bytes(file.read_bytes()[:-1])
        EpochViews(file.parent).epoch(0)

    with pytest.raises(SettingsError, match=r"epoch=00.parquet is damaged.*--pipeline=views"):
        failed(read)


def test_an_error_about_a_source_keeps_its_key(failed, tmp_path):
    def read(_):
        raise SettingsError("data.splits.train: damaged") from DamagedFileError(tmp_path, "torn")

    failed(read)  # the hook adds no other error


def test_a_full_disk_is_one_line(failed, tmp_path):
    def full(_):
        with atomic_file(tmp_path / "x.parquet"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def full_elsewhere(_):
        raise RuntimeError("MLflow") from OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(DiskFullError, match=r"left for .*resume"):
        failed(full)
    with pytest.raises(DiskFullError, match=r"left for .*resume"):
        failed(full_elsewhere)


def test_any_other_error_stays(failed):
    failed(lambda _: 1 / 0)


@pytest.mark.parametrize("pipeline", ["train_eval", "views"])
def test_a_second_command_of_a_run_is_refused_until_the_first_ends(
    context: Callable[..., Any], bootstrapped: Path, tmp_path: Path, pipeline: str
) -> None:
    loaded = context()

    def hooks(seed: int) -> ProjectHooks:
        made = ProjectHooks()
        resume = tmp_path / f"data/06_models/scenes/clic/default/seed={seed}/resume"
        paths = SimpleNamespace(resume=str(resume))
        made._context = SimpleNamespace(settings=SimpleNamespace(paths=paths))  # type: ignore[assignment]
        return made

    first, second = hooks(0), hooks(0)
    first._lock_run(pipelines[pipeline], loaded.catalog)
    with pytest.raises(SettingsError, match="seed=0 is in use by another command; wait"):
        second._lock_run(pipelines[pipeline], loaded.catalog)
    # Another seed, what all runs of a data set share, and workers of one study are free.
    hooks(1)._lock_run(pipelines[pipeline], loaded.catalog)
    second._lock_run(pipelines["validation"], loaded.catalog)
    second._lock_run(pipelines["tuning"], loaded.catalog)
    first._unlock()
    second._lock_run(pipelines[pipeline], loaded.catalog)
    second._unlock()


class Calls(NamedTuple):
    """What the store was asked for."""

    configured: list[Any]
    failed: list[tuple[str, str]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    made = Calls([], [])
    monkeypatch.setattr(tracking, "configure", lambda settings, _: made.configured.append(settings))
    failed = made.failed.append
    monkeypatch.setattr(tracking, "mark_failed", lambda run, error: failed((run, str(error))))
    return made


def prepared(**store: Any) -> ProjectHooks:
    hook = ProjectHooks()
    settings = SimpleNamespace(tracking=TrackingSettings(**store))
    context: Any = SimpleNamespace(settings=settings, project_path=Path("project"))
    hook._context = context
    return hook


def run(hook: ProjectHooks, pipeline: Pipeline) -> None:
    manager = _create_hook_manager()
    manager.register(hook)
    catalog = DataCatalog({"run": MemoryDataset(), "start": MemoryDataset(1)})
    hook._configure_tracking(pipeline)
    try:
        SequentialRunner().run(pipeline, catalog, hook_manager=manager)
    except RuntimeError as error:
        hook.on_pipeline_error(error, pipeline, catalog)


def train(start: int) -> dict[str, str]:
    return {"run_id": "r1"}


def evaluate(run: dict[str, str]) -> int:
    raise RuntimeError("no images")


def ingest(start: int) -> int:
    raise RuntimeError("no captions")


def test_other_pipelines_never_touch_the_store(calls: Calls) -> None:
    hook = prepared(experiment="mine")
    run(hook, Pipeline([node(ingest, "start", "captions")]))
    assert calls.configured == []
    assert calls.failed == []


def test_run_of_a_failing_pipeline_is_marked(calls: Calls) -> None:
    hook = prepared()
    run(hook, Pipeline([node(train, "start", "run"), node(evaluate, "run", "scores")]))
    assert len(calls.configured) == 1 and calls.failed == [("r1", "no images")]
    # A failure before the training leaves older runs alone.
    calls.failed.clear()
    run(hook, Pipeline([node(ingest, "start", "rows"), node(lambda rows: {}, "rows", "run")]))
    assert calls.failed == []
