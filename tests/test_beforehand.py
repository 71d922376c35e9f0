"""What is known to be wrong is refused before the first node runs."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kedro.framework.project import pipelines
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project
from kedro.io import AbstractDataset, DataCatalog
from kedro.pipeline import Pipeline, node
from kedro_datasets.json import JSONDataset

from compo_pipeline import beforehand
from compo_pipeline.beforehand import NotThere
from compo_pipeline.configuration import SettingsError
from compo_pipeline.registry import hook as tracking_hook
from compo_pipeline.registry.hook import TrackingHook

Context = Callable[..., Any]


@pytest.fixture
def context(project: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    monkeypatch.chdir(project)
    bootstrap_project(project)

    def load(**runtime: Any) -> Any:
        with KedroSession.create(project, env="base", runtime_params=runtime) as session:
            return session.load_context()

    return load


@pytest.mark.parametrize(
    ("pipeline", "params", "told"),
    [
        ("train_eval", {"registration": {"alias": "champion"}}, "registration.alias: 'champion'"),
        ("train_eval", {"training": {"batch_size": 0}}, "training.batch_size: expected at least"),
        ("train_eval", {"training": {"precision": "fp17"}}, "training.precision: Input should be"),
        ("train_eval", {"training": {"precision": "fp16"}}, "training.precision: 'fp16' is not"),
        ("train_eval", {"training": {"device": "cuda:99"}}, "training.device: 'cuda:99' cannot"),
        ("tuning", {"training": {"device": "cuda:99"}}, "training.device: 'cuda:99' cannot"),
        ("attention", {"evaluation": {"device": "cuda:99"}}, "evaluation.device: 'cuda:99' cannot"),
        ("pretraining", {"pretraining": {"precision": "fp16"}}, "pretraining.precision: 'fp16' is"),
        ("views", {"clic": {"views": {"images": "three"}}}, "clic.views.images: "),
        ("train_eval", {"clic": {"objective": {"positives": 99}}}, "clic.objective.positives: "),
        (
            "validation",
            {"validation": {"tolerated_share": 3}},
            "validation.tolerated_share: expected",
        ),
        (
            "counterfactuals",
            {"counterfactuals": {"caption_editor": "rules"}},
            "counterfactuals.image_generator: ",
        ),
        (
            "promotion",
            {"promotion": {"gate": {"items": 0}}},
            "promotion.gate.items: Input should be greater than 0 (got 0)",
        ),
        ("export", {"export": {"hugging_face": False, "onnx": False}}, "export: no format is"),
    ],
)
def test_settings_of_later_nodes_are_refused_first(
    context: Context, pipeline: str, params: dict[str, Any], told: str
) -> None:
    with pytest.raises(SettingsError, match=f"^{re.escape(told)}") as caught:
        beforehand.check_settings(context(**params).params, pipelines[pipeline])
    assert "Value error" not in caught.value.message


def test_the_projects_own_settings_pass(context: Context) -> None:
    parameters = context().params
    assert len(pipelines) > 12
    for pipeline in pipelines.values():
        beforehand.check_settings(parameters, pipeline)


def test_settings_that_no_node_reads_are_no_matter(context: Context) -> None:
    unused = {"registration": {"alias": "champion"}, "sparcl": {"objective": {"bias": "x"}}}
    beforehand.check_settings(context(**unused).params, pipelines["training"])


def test_all_settings_that_nodes_parse_are_known(project: Path) -> None:
    places = sorted((project / "src/compo_pipeline/pipelines").rglob("*.py"))
    parsed = re.compile(r'\bparse\((?:\w+\.)*(\w+), \w+, "([\w.]+)"\)')
    found = {key: name for path in places for name, key in parsed.findall(path.read_text())}
    # A node's own result, read again.
    del found["confirmation"]
    assert len(found) > 12
    assert (
        found.items()
        <= {key: name.rpartition(".")[2] for key, name in beforehand.SETTINGS.items()}.items()
    )


def test_what_was_not_made_is_named_with_its_maker(context: Context) -> None:
    with pytest.raises(NotThere) as caught:
        beforehand.check_inputs(pipelines["export"], context(variant="nobody").catalog)
    place = "data/06_models/scenes/clic/nobody/seed=0/checkpoint"
    assert f"  checkpoint: {place}, made by the pipeline training\n" in caught.value.message
    beforehand.check_inputs(pipelines["train_eval"], context(variant="nobody").catalog)


def test_a_dataset_that_cannot_tell_whether_it_is_there_is_left_to_its_node() -> None:
    class Silent(AbstractDataset[Any, Any]):
        def load(self) -> str:
            return "loaded"

        def save(self, data: Any) -> None: ...

        def _describe(self) -> dict[str, Any]:
            return {}

    pipeline = Pipeline([node(lambda given: given, "silent", "read", name="reading")])
    beforehand.check_inputs(pipeline, DataCatalog({"silent": Silent()}))
    with pytest.raises(NotThere, match=r"silent: gone\.json, which no pipeline makes"):
        gone = JSONDataset(filepath="gone.json")
        beforehand.check_inputs(pipeline, DataCatalog({"silent": gone}))


@pytest.mark.parametrize(
    ("error", "marked"), [(SettingsError("benchmarks.root: ..."), 0), (RuntimeError("nan"), 1)]
)
def test_a_later_commands_mistake_fails_no_finished_run(
    monkeypatch: pytest.MonkeyPatch, error: Exception, marked: int
) -> None:
    noted: list[str] = []
    monkeypatch.setattr(
        tracking_hook.tracking, "mark_failed", lambda run_id, error: noted.append(run_id)
    )
    hook = TrackingHook()
    hook.after_dataset_loaded("run", {"run_id": "abc"})
    hook.on_pipeline_error(error)
    assert noted == ["abc"] * marked
