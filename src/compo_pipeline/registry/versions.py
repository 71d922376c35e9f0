"""Versions of a registered model: find, list and copy them."""

from __future__ import annotations

import logging
import re
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import mlflow
import torch
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from rich.console import Console

from compo_pipeline.configuration import SettingsError, nearest
from compo_pipeline.console import table as plain_table
from compo_pipeline.console import terminal
from compo_pipeline.models.loading import LoadedModel, load
from compo_pipeline.models.settings import REGISTRY_PREFIX, ModelSettings
from compo_pipeline.registry import tracking
from compo_pipeline.registry.scores import OVERLAPS, SCORES
from compo_pipeline.registry.settings import CopySettings, SigningSettings
from compo_pipeline.registry.verification import VersionError, verified

# Prefix of a version's tags about the last decision; the tag of its outcome.
DECISION_TAG = "promotion."
OUTCOME = f"{DECISION_TAG}outcome"
_MODEL = "model"
_URI = re.compile(r"models:/(?P<name>[^/@]+)(?:@(?P<alias>[^/@]+)|/(?P<version>\d+))")
# Tags that versions of the same model have in common.
_SAME_MODEL = ("checkpoint_sha256", "precision")
_COLUMNS = ("dataset", "method", "variant", "seed", "headline", OUTCOME)

log = logging.getLogger(__name__)


def named(uri: str, key: str) -> tuple[str, str | None, int | None]:
    """Name, alias and number of a registered version's URI.

    Args:
        uri: `models:/<name>@<alias>` or `models:/<name>/<version>`.
        key: the setting or option that holds it, for errors.

    Raises:
        SettingsError: it is no such URI.
    """
    match = _URI.fullmatch(uri)
    if match is None:
        raise SettingsError(
            f"{key}: '{uri}' is neither models:/<name>@<alias>, models:/<name>/<version> nor the "
            "folder of an exported model"
        )
    number = match["version"]
    return match["name"], match["alias"], None if number is None else int(number)


def load_model(
    model: ModelSettings, device: str | torch.device, signing: SigningSettings
) -> LoadedModel:
    """Load the model of the `model` settings, which may be the URI of a registered version.

    Raises:
        SettingsError: there is no such model.
        VersionError: the version's files are not those that were registered.
    """
    if not model.name.startswith(REGISTRY_PREFIX):
        return load(model, device)
    version = version_of(model.name, "model.name")
    with tempfile.TemporaryDirectory() as folder:
        return verified(version, Path(folder), signing).model.to(device)


def version_of(uri: str, key: str) -> ModelVersion:
    """The registered version of a URI; `key` is the setting that holds it.

    Raises:
        SettingsError: there is none.
    """
    name, alias, number = named(uri, key)
    return find(name, alias or "", number, key)


def find(name: str, alias: str, number: int | None, key: str | None = None) -> ModelVersion:
    """Find a version of a registered model by its number or, without one, by its alias.

    Args:
        name: of the model.
        alias: of the version.
        number: its number; None for the alias.
        key: the setting that names it, for errors; None is the option `--version` or `--alias`.

    Raises:
        SettingsError: there is none; the message lists the aliases.
    """
    aliases = tracking.registered_model(name).aliases
    client = mlflow.MlflowClient()
    if number is not None:
        try:
            return client.get_model_version(name, str(number))
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            raise SettingsError(f"{key or '--version'}: {name} has no version {number}") from None
    if alias not in aliases:
        known = ", ".join(f"{each} (version {aliases[each]})" for each in sorted(aliases)) or "none"
        raise SettingsError(
            f"{key or '--alias'}: no version of {name} has the alias '{alias}'"
            f"{nearest(alias, aliases)} (known: {known}). `kedro run --pipeline=promotion` makes a "
            "challenger that passes the gate champion; any other is named by alias or number"
        )
    return client.get_model_version(name, str(aliases[alias]))


def load_base(version: ModelVersion, base: ModelSettings, device: str) -> LoadedModel:
    """Load the base that a version was fine-tuned from.

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


def same_model(
    client: Any,
    name: str,
    tags: Mapping[str, str],
    signing: SigningSettings,
    store: str | None = None,
) -> ModelVersion | None:
    """The latest version of the same checkpoint in the same precision, if it is intact.

    Args:
        client: of the registry.
        name: of the model.
        tags: of the version to find again.
        signing: the configured keys.
        store: URI of the registry; None is the configured one.
    """
    if any(tag not in tags for tag in _SAME_MODEL):
        return None
    same = " AND ".join(f"tags.{tag} = '{tags[tag]}'" for tag in _SAME_MODEL)
    versions = client.search_model_versions(f"name = '{name}' AND {same}")
    found = max(versions, key=lambda each: int(each.version), default=None)
    if found is not None:
        try:
            with tempfile.TemporaryDirectory() as folder:
                verified(found, Path(folder), signing, store)
        except VersionError as error:
            log.warning("Not used again: %s", error.message)
            return None
    return found


def copy_version(
    name: str, settings: CopySettings, signing: SigningSettings, *, dry_run: bool = False
) -> int | None:
    """Copy a version, under the same name, to another registry.

    The copy is a version of a new run, which has its files and scores. A version of the same
    checkpoint in the same precision is not copied twice.

    Args:
        name: of the model.
        settings: source and target.
        signing: the configured keys.
        dry_run: change nothing.

    Returns:
        The version's number in the other registry; None if a dry run would create it.

    Raises:
        SettingsError: no registry is named or none answers, or no version has the alias.
        VersionError: the version's files are not those that were registered.
    """
    if settings.to is None:
        raise SettingsError("promotion.copy.to: expected the other registry's URI, got null")
    tracking.registered_model(name)
    try:
        version = mlflow.MlflowClient().get_model_version_by_alias(name, settings.alias)
    except MlflowException as error:
        raise SettingsError(
            f"promotion.copy.alias: no version of {name} has '{settings.alias}' ({error.message})"
        ) from None
    with tempfile.TemporaryDirectory() as temporary:
        files = verified(version, Path(temporary), signing).folder
        with tracking.store_errors(settings.to, "promotion.copy.to"):
            target = mlflow.MlflowClient(tracking_uri=settings.to, registry_uri=settings.to)
            existing = same_model(target, name, version.tags, signing, settings.to)
        if dry_run:
            return int(existing.version) if existing else None
        experiment = tracking.experiment_in(settings.to, settings.experiment, "promotion.copy.to")
        copied = existing or _copied(target, version, files, experiment)
    done = "Copied" if existing is None else "Was copied before:"
    log.info("%s %s version %s as version %s.", done, name, version.version, copied.version)
    target.set_registered_model_alias(name, settings.gives, copied.version)
    return int(copied.version)


def run_of(version: ModelVersion) -> str | None:
    """Id of the version's run; None if the store has no such run."""
    return version.run_id if version.run_id and tracking.find(version.run_id) else None


def show_table(console: Console | None = None) -> None:
    """Print the versions of every registered model of the store, newest first."""
    client = mlflow.MlflowClient()
    console = terminal(console)
    models = client.search_registered_models()
    if not models:
        console.print("No model is registered. `kedro run --pipeline=train_eval` registers one.")
    for model in models:
        aliases: dict[int, list[str]] = {}
        for alias, number in sorted(model.aliases.items()):
            aliases.setdefault(int(number), []).append(alias)
        table = plain_table()
        headline = "headline (against base)"
        for column in ("version", "aliases", *_COLUMNS[:4], headline, "promotion", "registered"):
            table.add_column(column, no_wrap=column != headline)
        versions = client.search_model_versions(f"name = '{model.name}'")
        for version in sorted(versions, key=lambda each: -int(each.version)):
            own = ", ".join(aliases.get(int(version.version), []))
            tags = [version.tags.get(tag, "") for tag in _COLUMNS]
            created = datetime.fromtimestamp(version.creation_timestamp / 1000, UTC)
            table.add_row(str(version.version), own, *tags, f"{created:%Y-%m-%d}")
        console.print(f"\n{model.name}", markup=False)
        console.print(table)


def _copied(target: Any, version: ModelVersion, files: Path, experiment: str) -> ModelVersion:

    origin = f"models:/{version.name}/{version.version}"
    tags = {"copied_from": origin, "copied_from_run": version.run_id or ""}
    name = f"copy of {version.name} {version.version}"
    run = target.create_run(experiment, run_name=name, tags=tags)
    run_id = run.info.run_id
    target.log_artifacts(run_id, str(files), _MODEL)
    if source_run := run_of(version):
        source = mlflow.MlflowClient()
        stored = {file.path for file in source.list_artifacts(source_run)}
        with tempfile.TemporaryDirectory() as temporary:
            for folder in stored.intersection((SCORES, OVERLAPS)):
                path = source.download_artifacts(source_run, folder, temporary)
                target.log_artifacts(run_id, path, folder)
    target.set_terminated(run_id)
    try:
        target.create_registered_model(version.name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    copy: ModelVersion = target.create_model_version(
        version.name,
        source=f"{run.info.artifact_uri}/{_MODEL}",
        run_id=run_id,
        # Decisions of this registry do not hold in the other one.
        tags={k: v for k, v in version.tags.items() if not k.startswith(DECISION_TAG)} | tags,
        description=version.description,
    )
    return copy
