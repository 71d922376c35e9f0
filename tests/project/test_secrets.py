"""Passwords and keys, wherever they are configured, are in no output."""

import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import optuna
import pytest
from kedro.framework.session import KedroSession
from kedro.io import DataCatalog
from kedro.pipeline import Pipeline, node
from kedro_datasets.json import JSONDataset
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from compo_pipeline.core.provenance import Site
from compo_pipeline.core.records import Parse
from compo_pipeline.core.remote import RemoteError
from compo_pipeline.core.settings import PlainError, SettingsError, masked, parse
from compo_pipeline.generation.counterfactuals.contract import EditRequest, Opening
from compo_pipeline.generation.counterfactuals.editors.llm import EndpointEditor
from compo_pipeline.generation.counterfactuals.settings import EditorEndpointSettings
from compo_pipeline.pipelines.tuning.nodes import name_tuned_run
from compo_pipeline.project.hooks import ProjectHooks, show_results
from compo_pipeline.registry import runs as tracking
from compo_pipeline.registry import versions
from compo_pipeline.registry.promotion import PromotionError, promote, roll_back
from compo_pipeline.registry.runs import RunLog
from compo_pipeline.registry.settings import Gate, GateRule, PromotionSettings, SigningSettings
from compo_pipeline.registry.tracking_settings import TrackingSettings
from compo_pipeline.registry.verification import VersionError, verified
from compo_pipeline.tuning.settings import StudySettings
from compo_pipeline.tuning.study import StudyPlan, open_study

SECRET = "hunter2-Zq9"
URLS = (
    f"https://me:{SECRET}@host/path",
    f"postgresql://me:{SECRET}@host/db",
    f"postgresql://me:a/{SECRET}@host/db",
    f"postgresql://me:a@{SECRET}@host/db",
    f"postgresql://host/db?user=me&password={SECRET}",
    f"postgresql://host/db?sslpassword={SECRET}&x=1",
    f"https://host/path?sv=1&sig={SECRET}&x=1",
    f"https://host/path?api_key={SECRET}",
    f"https://host/path?key={SECRET}",
    f"https://bucket/path?X-Amz-Signature={SECRET}",
)
RUNTIME: dict[str, Any] = {
    "tracking": {"uri": URLS[0]},
    "tuning": {"study": {"storage": URLS[1]}},
    "counterfactuals": {"endpoint": {"url": URLS[0], "model": "m", "more": {"api_key": SECRET}}},
}


@pytest.mark.parametrize("url", URLS)
def test_the_secret_of_a_url_is_masked_and_nothing_else(url: str) -> None:
    shown = masked(f"cannot use {url}: no answer")
    assert SECRET not in shown and "***" in shown
    assert shown.startswith(f"cannot use {url.split(':')[0]}://") and shown.endswith(" no answer")
    assert masked(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "file:///home/me/photo@2x.png",
        "sqlite:////home/me@work/mlflow.db",
        "https://host/path?page=2",
        "counterfactuals.endpoint.max_tokens=120,seed=1",
        "design=4 config=a key_variable=OPENAI_KEY",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert masked(text) == text


@pytest.mark.parametrize(
    "text", [f'api_key="{SECRET}"', f"{{'api_key': '{SECRET}'}}", f"Authorization: Bearer {SECRET}"]
)
def test_named_secrets_are_masked(text: str) -> None:
    assert SECRET not in masked(text)


def commands(site: Site, tmp_path: Path) -> Iterator[str]:
    """All that shows the command line: pages, cards, files of a study, next steps."""
    yield from site.facts("train_eval").values()
    run = name_tuned_run(site.command, "clic", "default")
    finished = optuna.create_study()
    finished.add_trial(optuna.trial.create_trial(value=1.0, user_attrs={"score": 1.0}))
    run.write(finished, finished.best_trial, tmp_path / "best_params.yml")
    yield (tmp_path / "best_params.yml").read_text()
    yield run.command({"training.epochs": 2})


def test_no_command_shows_a_secret(
    context: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parameters = context(**RUNTIME).objects
    shown = list(commands(parameters["site"], tmp_path))
    assert "train_eval" in " ".join(shown) and "tracking.uri=https://***@host/path" in shown[1]
    registered = JSONDataset(filepath=str(tmp_path / "registered.json"))
    registered.save({"name": "compo-clip", "version": 3, "alias": "challenger"})
    pipeline = Pipeline([node(lambda: None, None, "registered", name="register")])
    given = parameters["promotion"], parameters["command"]
    show_results(pipeline, DataCatalog({"registered": registered}), *given)
    shown.append(capsys.readouterr().out)
    assert "compo-pipeline try" in shown[-1]
    assert SECRET not in "\n".join(shown)


def test_kedros_credentials_reach_the_storage_and_nothing_else(
    bootstrapped: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.chdir(bootstrapped)
    monkeypatch.setenv("FSSPEC_S3", "{}")
    monkeypatch.setattr(fsspec.config, "conf", {})
    shutil.copytree(bootstrapped / "conf", tmp_path / "conf")
    (tmp_path / "conf" / "base" / "credentials.yml").write_text(f"s3: {{secret: {SECRET}}}")
    runtime = {"data": {"root": "s3://bucket/coco"}}
    with KedroSession.create(
        bootstrapped, env="base", runtime_params=runtime, conf_source=str(tmp_path / "conf")
    ) as session:
        parameters = session.load_context().params
    assert fsspec.config.conf["s3"]["secret"] == SECRET
    assert SECRET not in f"{parameters} {caplog.text}"


@pytest.mark.usefixtures("mlflow_project")
def test_the_store_holds_no_secret() -> None:
    run_id = tracking.open_run("secrets", {})
    log = RunLog(run_id)
    for epoch in range(2):  # a changed parameter becomes a tag
        log.params({"runtime": {**RUNTIME, "epoch": f"{URLS[0]}?{epoch}"}})
    log.tags({"why": f"no answer of {URLS[1]}"})
    tracking.mark_failed(run_id, RuntimeError(f"cannot use {URLS[5]}"))
    run = tracking.find(run_id)
    stored = {**run.data.params, **run.data.tags}
    assert any("***" in value for value in stored.values()) and SECRET not in str(stored)


def errors(tmp_path: Path) -> Iterator[Callable[[], Any]]:
    for url in URLS:
        yield lambda url=url: parse(TrackingSettings, {"uri": {"url": url}}, "tracking")
        yield lambda url=url: parse(
            EditorEndpointSettings, {"url": url[5:], "model": "m"}, "endpoint"
        )
        given = {"name": "s", "storage": url[1:]}
        yield lambda given=given: parse(StudySettings, given, "tuning.study")
    for url in (*URLS[1:3], *URLS[4:6]):
        plan = StudyPlan(StudySettings("s", storage=url), tmp_path, {}, {})
        yield lambda plan=plan: open_study(plan)
    yield lambda: parse(EditorEndpointSettings, {"url": URLS[7], "model": "m"}, "endpoint")
    yield lambda: parse(EditorEndpointSettings, {"more": [{"api_key": SECRET}]}, "endpoint")


def test_no_error_of_the_settings_shows_a_secret(tmp_path: Path) -> None:
    for wrong in errors(tmp_path):
        with pytest.raises(SettingsError) as caught:
            wrong()
        assert SECRET not in f"{caught.value} {caught.value.message} {caught.value!r}"


def test_an_endpoint_shows_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("KEY_OF_THE_TEST", SECRET)
    settings = EditorEndpointSettings(
        url=f"http://me:{SECRET}@127.0.0.1:1/v1", model="m", key_variable="KEY_OF_THE_TEST"
    )
    editor = EndpointEditor(settings, "endpoint", Opening(0, state=tmp_path))
    parsed = Parse("id", 0, "A dog.", (), (), (), (), ())
    with pytest.raises(SettingsError, match=r"at http://\*\*\*@127\.0\.0\.1:1/v1") as caught:
        list(editor.edit([EditRequest("id", 0, "negative", "A dog.", parsed)]))
    assert SECRET not in caught.value.message + caplog.text


@pytest.mark.parametrize("error", [PromotionError, RemoteError, VersionError])
def test_no_error_of_one_line_shows_a_secret(error: type[PlainError]) -> None:
    raised = error(f"no answer of {URLS[0]}")
    assert SECRET not in f"{raised} {raised.message} {raised!r}"


@pytest.fixture
def dead(monkeypatch: pytest.MonkeyPatch, mlflow_project: Path, free_port: Any) -> Iterator[None]:
    """The configured store is a server with a password that does not answer."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    uri = f"http://me:{SECRET}@127.0.0.1:{free_port()}"
    tracking.connect(TrackingSettings(uri=uri), mlflow_project)
    yield
    tracking.configure(TrackingSettings(), mlflow_project)


@pytest.mark.usefixtures("dead")
def test_no_command_about_versions_shows_the_secret_of_a_dead_server(tmp_path: Path) -> None:
    unsigned, gate = SigningSettings(), Gate(version=1, rules={"a": GateRule("rise", figure="a")})
    promotion = PromotionSettings(gate=gate)
    version = ModelVersion("compo-clip", "1", 0)
    for command in (
        versions.show_table,
        lambda: versions.find("compo-clip", "champion", None),
        lambda: verified(version, tmp_path, unsigned),
        lambda: promote("compo-clip", "challenger", promotion, unsigned),
        lambda: roll_back("compo-clip", promotion, unsigned),
    ):
        with pytest.raises(PlainError) as caught:
            command()
        assert SECRET not in f"{caught.value} {caught.value.message}"
        assert "***@127.0.0.1" in caught.value.message


def test_an_error_of_mlflow_ends_a_run_in_one_line_without_a_secret() -> None:
    pipeline = Pipeline([node(lambda: None, None, "registered", name="register")])
    hooks = ProjectHooks()
    try:
        raise MlflowException(f"no answer of {URLS[0]}")
    except MlflowException as error:
        with pytest.raises(SettingsError, match=r"tracking\.uri: cannot use .*no answer") as caught:
            hooks.on_pipeline_error(error, pipeline, DataCatalog())
    assert SECRET not in caught.value.message
    # An error of one line stays, whatever it followed from.
    try:
        with tracking.store_errors():
            raise MlflowException("no answer")
    except SettingsError as error:
        hooks.on_pipeline_error(error, pipeline, DataCatalog())
