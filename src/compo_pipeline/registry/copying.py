"""Copying a version to another registry: artefacts, tags, description, and its kept scores."""

from __future__ import annotations

import logging
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from compo_pipeline.configuration import SettingsError
from compo_pipeline.registry import decision, kept_scores, tracking
from compo_pipeline.registry.aliases import refuse_gates_own
from compo_pipeline.registry.versions import run_of

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

    def __post_init__(self) -> None:
        """No copy comes around the gate."""
        refuse_gates_own("gives", self.gives)


def copy_version(name: str, settings: CopySettings, *, dry_run: bool = False) -> int | None:
    """Copy a version, under the same name, to another registry.

    There it is a version of a run of its own, which holds its files and scores. A version of the
    same checkpoint in the same precision is not copied twice.

    Args:
        name: of the model.
        settings: what goes where.
        dry_run: look, and change nothing.

    Returns:
        The version's number over there; None where a dry run would make one.

    Raises:
        SettingsError: no registry is named or none answers, or no version has the alias.
    """
    import mlflow
    from mlflow.exceptions import MlflowException

    if settings.to is None:
        raise SettingsError("promotion.copy.to: expected the other registry's URI, got null")
    source = mlflow.MlflowClient()
    tracking.registered_model(name)
    try:
        version = source.get_model_version_by_alias(name, settings.alias)
    except MlflowException as error:
        raise SettingsError(
            f"promotion.copy.alias: no version of {name} has '{settings.alias}' ({error.message})"
        ) from None
    with tracking.answering(settings.to, "promotion.copy.to"):
        target = mlflow.MlflowClient(tracking_uri=settings.to, registry_uri=settings.to)
        copied = _there(target, version)
    if dry_run:
        return int(copied.version) if copied else None
    if copied is None:
        place = tracking.experiment_in(settings.to, settings.experiment, "promotion.copy.to")
        copied = _copied(source, target, version, place)
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


def _copied(source: Any, target: Any, version: ModelVersion, place: str) -> ModelVersion:
    import mlflow
    from mlflow.exceptions import MlflowException

    origin = f"models:/{version.name}/{version.version}"
    tags = {"copied_from": origin, "copied_from_run": version.run_id or ""}
    run = target.create_run(place, run_name=f"copy of {version.name} {version.version}", tags=tags)
    run_id = run.info.run_id
    with tempfile.TemporaryDirectory() as temporary:
        files = mlflow.artifacts.download_artifacts(origin, dst_path=f"{temporary}/{_MODEL}")
        target.log_artifacts(run_id, files, _MODEL)
        if trained_in := run_of(version):
            kept = {file.path for file in source.list_artifacts(trained_in)}
            for folder in kept.intersection(kept_scores.FOLDERS):
                path = source.download_artifacts(trained_in, folder, temporary)
                target.log_artifacts(run_id, path, folder)
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
        # What was decided here is not decided there.
        tags={k: v for k, v in version.tags.items() if not k.startswith(decision.PREFIX)} | tags,
        description=version.description,
    )
    return made
