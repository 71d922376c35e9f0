"""The hook configures MLflow for pipelines that have a run, and for no others."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from kedro.framework.hooks import _create_hook_manager
from kedro.io import DataCatalog, MemoryDataset
from kedro.pipeline import Pipeline, node
from kedro.runner import SequentialRunner

from compo_pipeline.project.hooks import ProjectHooks
from compo_pipeline.registry import runs as tracking
from compo_pipeline.registry.tracking_settings import TrackingSettings


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
