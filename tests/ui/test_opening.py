"""Versions are found by alias or number, and whoever asks for none that is there learns why."""

import socket
from pathlib import Path

import mlflow
import pytest
from click import ClickException
from mlflow.entities.model_registry import ModelVersion

from compo_pipeline.configuration import SettingsError
from compo_pipeline.models.export import export
from compo_pipeline.models.loading import LoadedModel, ModelSettings
from compo_pipeline.registry import tracking
from compo_pipeline.ui import page
from compo_pipeline.ui.opening import find, open_version


@pytest.fixture(scope="module")
def version(
    mlflow_project: Path,
    models: tuple[LoadedModel, LoadedModel],
    tmp_path_factory: pytest.TempPathFactory,
) -> ModelVersion:
    """The challenger `tried`, version 1."""
    tracking.configure(tracking.TrackingSettings(), mlflow_project)
    source = tmp_path_factory.mktemp("version")
    export(models[1], source / "artifacts" / "model")
    client = mlflow.MlflowClient()
    client.create_registered_model("tried")
    tags = {"base_fingerprint": models[0].fingerprint, "method": "clic"}
    made = client.create_model_version("tried", str(source), tags=tags)
    client.set_registered_model_alias("tried", "challenger", made.version)
    return made


def test_a_version_has_an_alias_or_a_number(version: ModelVersion) -> None:
    assert find("tried", "challenger", None).version == version.version
    assert find("tried", "nobody", 1).version == version.version


def test_what_is_not_there_is_told(version: ModelVersion) -> None:
    with pytest.raises(SettingsError, match=r"registration.name: .*no model 'missing'.*tracking"):
        find("missing", "champion", None)
    with pytest.raises(SettingsError, match=r"registration.name: .*no model 'missing'"):
        find("missing", "champion", 1)
    with pytest.raises(SettingsError, match=r"--version: tried has no version 7"):
        find("tried", "champion", 7)
    told = r"--alias: .*'champion' .*there: challenger \(version 1\).*--pipeline=promotion"
    with pytest.raises(SettingsError, match=told):
        find("tried", "champion", None)
    with pytest.raises(SettingsError, match="did you mean 'challenger'"):
        find("tried", "chalenger", None)


def test_a_version_is_loaded_beside_its_base(
    version: ModelVersion,
    models: tuple[LoadedModel, LoadedModel],
    folders: tuple[Path, Path],
) -> None:
    base = ModelSettings(f"local-dir:{folders[0]}")
    opened = open_version(version, "challenger", base, "cpu")
    loaded = (opened.pair.base.fingerprint, opened.pair.tuned.fingerprint)
    assert loaded == (models[0].fingerprint, models[1].fingerprint)
    assert opened.pair.label == "challenger"
    assert opened.title == f"tried, version 1: CLIC, fine-tuned from {opened.pair.base.name}"
    other = ModelSettings(f"local-dir:{folders[1]}")
    with pytest.raises(SettingsError, match="fine-tuned from another model"):
        open_version(version, "challenger", other, "cpu")


def test_a_busy_port_is_told_in_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ClickException, match=rf"^--port: cannot listen on 127.0.0.1:{port} \("):
            page.require_free("127.0.0.1", port)
    page.require_free("127.0.0.1", port)


def test_without_gradio_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"pip install 'compo-pipeline\[ui\]'"):
        page.require_gradio()
