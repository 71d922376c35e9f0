"""Copying a version to another registry: artefacts, tags, description, and its kept scores."""

from __future__ import annotations

import logging
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compo_pipeline.configuration import SettingsError
from compo_pipeline.registry import kept_scores
from compo_pipeline.registry.version_scores import run_of

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

log = logging.getLogger(__name__)

SAME = ("checkpoint_sha256", "precision")
_MODEL = "model"


@dataclass(frozen=True, slots=True)
class CopySettings:
    """The YAML key `promotion.copy`.

    Attributes:
        to: the other registry: MLflow's server or database; null refuses to copy.
        alias: of the version to copy.
        gives: the alias that the copy gets over there.
        experiment: of the other store, for the run that holds the copy.
    """

    to: str | None = None
    alias: str = "champion"
    gives: str = "challenger"
    experiment: str = "compo"


def copy_version(name: str, settings: CopySettings) -> int:
    """Copy a version, under the same name, to another registry.

    There it is a version of a run of its own, which holds its files and scores. A version of the
    same checkpoint in the same precision is not copied twice.

    Returns:
        The version's number over there.

    Raises:
        SettingsError: no registry is named, or no version has the alias.
    """
    import mlflow
    from mlflow.exceptions import MlflowException

    if settings.to is None:
        raise SettingsError("promotion.copy.to: expected the other registry's URI, got null")
    source = mlflow.MlflowClient()
    target = mlflow.MlflowClient(tracking_uri=settings.to, registry_uri=settings.to)
    try:
        version = source.get_model_version_by_alias(name, settings.alias)
    except MlflowException as error:
        raise SettingsError(
            f"promotion.copy.alias: no version of {name} has '{settings.alias}' ({error.message})"
        ) from None
    copied = _there(target, version)
    if copied is None:
        copied = _copied(source, target, version, settings.experiment)
        log.info("Copied %s version %s; there it is %s.", name, version.version, copied.version)
    else:
        log.info("%s version %s is there already, as %s.", name, version.version, copied.version)
    target.set_registered_model_alias(name, settings.gives, copied.version)
    return int(copied.version)


def _there(target: Any, version: ModelVersion) -> ModelVersion | None:
    if any(tag not in version.tags for tag in SAME):
        return None
    same = " AND ".join(f"tags.{tag} = '{version.tags[tag]}'" for tag in SAME)
    found = target.search_model_versions(f"name = '{version.name}' AND {same}")
    return max(found, key=lambda each: int(each.version), default=None)


def _copied(source: Any, target: Any, version: ModelVersion, experiment: str) -> ModelVersion:
    import mlflow
    from mlflow.exceptions import MlflowException

    known = target.get_experiment_by_name(experiment)
    place = known.experiment_id if known else target.create_experiment(experiment)
    origin = f"models:/{version.name}/{version.version}"
    tags = {"copied_from": origin, "copied_from_run": version.run_id or ""}
    run = target.create_run(place, run_name=f"copy of {version.name} {version.version}", tags=tags)
    run_id = run.info.run_id
    with tempfile.TemporaryDirectory() as temporary:
        files = mlflow.artifacts.download_artifacts(origin, dst_path=f"{temporary}/{_MODEL}")
        target.log_artifacts(run_id, files, _MODEL)
        if trained_in := run_of(version):
            kept = {file.path for file in source.list_artifacts(trained_in)}
            for name in sorted(kept & {kept_scores.FOLDER, kept_scores.COMPARISON}):
                path = Path(source.download_artifacts(trained_in, name, temporary))
                if path.is_dir():
                    target.log_artifacts(run_id, str(path), name)
                else:
                    target.log_artifact(run_id, str(path))
    target.set_terminated(run_id)
    try:
        target.create_registered_model(version.name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    made: ModelVersion = target.create_model_version(
        version.name,
        source=f"{run.info.artifact_uri}/{_MODEL}",
        run_id=run_id,
        tags={**version.tags, **tags},
        description=version.description,
    )
    return made
