"""What a registered version stands for: its model, the base that it came from, its run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from compo_pipeline.configuration import SettingsError
from compo_pipeline.models.identity import CONFIG_FILE
from compo_pipeline.models.loading import LoadedModel, ModelSettings, load
from compo_pipeline.registry import tracking

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion


def load_version(version: ModelVersion, folder: Path, device: str) -> LoadedModel:
    """A version's model.

    Args:
        version: of the registry.
        folder: where its files are copied to.
        device: where the weights go.

    Raises:
        SettingsError: its files are no longer what was registered.
    """
    loaded = load(downloaded(version, folder), device)
    if version.tags.get("fingerprint") not in (None, loaded.fingerprint):
        raise SettingsError(
            f"registration.name: the files of version {version.version} are of other weights "
            "than its tag fingerprint says; register the model again"
        )
    return loaded


def load_base(version: ModelVersion, base: ModelSettings, device: str) -> LoadedModel:
    """The base that a version was fine-tuned from.

    Raises:
        SettingsError: `model` names another one.
    """
    loaded = load(base, device)
    if version.tags.get("base_fingerprint") != loaded.fingerprint:
        raise SettingsError(
            f"model: version {version.version} was fine-tuned from another model than "
            f"'{loaded.name}', or does not say from which (tag base_fingerprint); set model.name "
            "and model.pretrained as they were in its training"
        )
    return loaded


def downloaded(version: ModelVersion, folder: Path) -> Path:
    """A version's open_clip folder, below a folder that its artefacts are copied to."""
    import mlflow

    uri = f"models:/{version.name}/{version.version}"
    place = Path(mlflow.artifacts.download_artifacts(uri, dst_path=str(folder)))
    found = next(place.rglob(CONFIG_FILE), None)
    if found is None:
        raise SettingsError(
            f"registration.name: {uri} holds no {CONFIG_FILE}: it was not registered by this "
            "project; take the alias from it"
        )
    return found.parent


def run_of(version: ModelVersion) -> str | None:
    """The version's run where the store still has it."""
    return version.run_id if version.run_id and tracking.find(version.run_id) else None
