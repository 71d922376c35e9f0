"""Copies of a registered version in another registry, and the version that a model already has."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlflow
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from compo_pipeline.configuration.settings import SettingsError
from compo_pipeline.models.weights import read_record
from compo_pipeline.tracking import runs as tracking
from compo_pipeline.versions.evidence import Evidence
from compo_pipeline.versions.lineage import FILES_TAG, LINEAGE_FILE, file_digests, files_digest
from compo_pipeline.versions.settings import CopySettings, SigningSettings
from compo_pipeline.versions.signing import UNSIGNED_FILES, signer
from compo_pipeline.versions.verification import VersionError, seal, verified
from compo_pipeline.versions.versions import DECISION_TAG, find

_MODEL = "model"
# Tags that versions of the same model have in common.
_SAME_MODEL = ("checkpoint_sha256", "precision")

log = logging.getLogger(__name__)


def find_same_model(
    client: Any,
    name: str,
    tags: Mapping[str, str],
    evidence: Evidence,
    signing: SigningSettings,
    store: str | None = None,
) -> ModelVersion | None:
    """The registered version of the same checkpoint, precision and evidence; None if there is none.

    Evidence of other items, code or settings, or of other overlaps with the training data, needs a
    new version.

    Args:
        client: of the registry.
        name: of the model.
        tags: of the version to find again.
        evidence: of that version.
        signing: the configured keys.
        store: URI of the registry; None is the configured one.
    """
    found = latest_of_model(client, name, tags)
    if found is not None:
        try:
            with tempfile.TemporaryDirectory() as folder:
                files = verified(found, Path(folder), signing, store)
                record = read_record(files.export)
        except VersionError as error:
            log.warning("Not used again: %s", error.message)
            return None
        same_record = all(record.get(tag) == tags[tag] for tag in _SAME_MODEL)
        if not same_record or files.evidence != evidence:
            log.info("Version %s has other evidence, or is of another model.", found.version)
            return None
    return found


def latest_of_model(client: Any, name: str, tags: Mapping[str, str]) -> ModelVersion | None:
    """The latest version whose tags name the same checkpoint and precision, or None."""
    if any(tag not in tags for tag in _SAME_MODEL):
        return None
    same = " AND ".join(f"tags.{tag} = '{tags[tag]}'" for tag in _SAME_MODEL)
    versions = client.search_model_versions(f"name = '{name}' AND {same}")
    return max(versions, key=lambda each: int(each.version), default=None)


def copy_version(
    name: str, settings: CopySettings, signing: SigningSettings, *, dry_run: bool = False
) -> int | None:
    """Copy a registered version, under the same model name, to another MLflow registry.

    The copy is a version of a new run, which has its files. With keys it is signed anew, for a
    signature names the version's number. A version of the same checkpoint in the same
    precision is not copied twice.

    Args:
        name: of the model.
        settings: source and target.
        signing: the configured keys.
        dry_run: change nothing.

    Returns:
        The version's number in the other registry; None if a dry run would create it.

    Raises:
        SettingsError: no registry is named or none answers, no version has the alias, or the
            private key cannot be used.
        VersionError: the version's files are not those that were registered.
    """
    if settings.to is None:
        raise SettingsError("promotion.copy.to: expected the other registry's URI, got null")
    tracking.registered_model(name)
    if signing.public_key is not None:
        signer(signing)
    version = find(name, settings.alias, None, "promotion.copy.alias")
    with tempfile.TemporaryDirectory() as temporary:
        files = verified(version, Path(temporary), signing)
        with tracking.store_errors(settings.to, "promotion.copy.to"):
            target = mlflow.MlflowClient(tracking_uri=settings.to, registry_uri=settings.to)
            existing = find_same_model(
                target, name, version.tags, files.evidence, signing, settings.to
            )
        if dry_run:
            known = "a new version" if existing is None else f"version {existing.version}"
            log.info(
                "Dry run: %s version %s would be %s there, with the alias '%s'.",
                *(name, version.version, known, settings.gives),
            )
            return int(existing.version) if existing else None
        experiment = tracking.experiment_in(settings.to, settings.experiment, "promotion.copy.to")
        copied = existing or _register_copy(target, version, files.folder, experiment, signing)
    done = "Copied" if existing is None else "Was copied before:"
    log.info("%s %s version %s as version %s.", done, name, version.version, copied.version)
    target.set_registered_model_alias(name, settings.gives, copied.version)
    return int(copied.version)


def _register_copy(
    target: Any, version: ModelVersion, files: Path, experiment: str, signing: SigningSettings
) -> ModelVersion:
    """Register the files of a version in another registry, with tags that name their origin."""
    origin = f"models:/{version.name}/{version.version}"
    tags = {"copied_from": origin, "copied_from_run": version.run_id or ""}
    name = f"copy of {version.name} {version.version}"
    run_id = target.create_run(experiment, run_name=name, tags=tags).info.run_id
    copy = register_files(target, version, files, run_id, tags, signing)
    target.set_terminated(run_id)
    return copy


def register_files(
    client: Any,
    version: ModelVersion,
    files: Path,
    run_id: str,
    tags: Mapping[str, str],
    signing: SigningSettings,
) -> ModelVersion:
    """Register the verified files of a version as a new version of the same model name.

    Args:
        client: of the registry that gets it.
        version: whose tags and description it has, without those of decisions.
        files: its folder; lineage and signature are written anew.
        run_id: the run that stores the files.
        tags: further ones.
        signing: the configured keys.

    Raises:
        SettingsError: the private key cannot be used.
    """
    for name in (LINEAGE_FILE, *UNSIGNED_FILES):
        (files / name).unlink(missing_ok=True)
    client.log_artifacts(run_id, str(files), _MODEL)
    try:
        client.create_registered_model(version.name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    # Decisions on the old version do not hold for the new one.
    described = {k: v for k, v in version.tags.items() if not k.startswith(DECISION_TAG)}
    made: ModelVersion = client.create_model_version(
        version.name,
        source=f"{client.get_run(run_id).info.artifact_uri}/{_MODEL}",
        run_id=run_id,
        tags={**described, **tags, FILES_TAG: files_digest(file_digests(files))},
        description=version.description,
    )
    for file in seal(made, files, signing):
        client.log_artifact(run_id, str(file), _MODEL)
    return made
