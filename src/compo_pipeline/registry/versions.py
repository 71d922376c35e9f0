"""Versions of a registered model: find and list them."""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import UTC, datetime

import mlflow
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from rich.console import Console

from compo_pipeline.core.console import table as plain_table
from compo_pipeline.core.console import terminal
from compo_pipeline.core.settings import SettingsError, nearest
from compo_pipeline.registry import runs as tracking

# Prefix of a version's tags about the last decision; the tag of its outcome.
DECISION_TAG = "promotion."
OUTCOME = f"{DECISION_TAG}outcome"
_URI = re.compile(r"models:/(?P<name>[^/@]+)(?:@(?P<alias>[^/@]+)|/(?P<version>\d+))")
_COLUMNS = ("dataset", "method", "variant", "seed", "headline", OUTCOME)


def parse_uri(uri: str, key: str) -> tuple[str, str | None, int | None]:
    """Parse a `models:/` URI into the model's name, alias and version number.

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


def version_of(uri: str, key: str) -> ModelVersion:
    """The registered MLflow version that a `models:/` URI names.

    Raises:
        SettingsError: there is none.
    """
    name, alias, number = parse_uri(uri, key)
    return find(name, alias or "", number, key)


def find(name: str, alias: str, number: int | None = None, key: str | None = None) -> ModelVersion:
    """Find a version of a registered model by its number or, without one, by its alias.

    Args:
        name: name of the model.
        alias: alias of the version.
        number: number of the version. None for the alias.
        key: the setting that names it, for errors; None is the option `--version` or `--alias`.

    Raises:
        SettingsError: there is none; the message lists the aliases.
    """
    aliases = tracking.registered_model(name, key or "registration.name").aliases
    if number is None and alias not in aliases:
        known = ", ".join(f"{each} (version {aliases[each]})" for each in sorted(aliases)) or "none"
        raise SettingsError(
            f"{key or '--alias'}: no version of {name} has the alias '{alias}'"
            f"{nearest(alias, aliases)} (known: {known}). `kedro run --pipeline=promotion` makes a "
            "challenger that passes the gate champion; any other is named by alias or number"
        )
    wanted = str(aliases[alias] if number is None else number)
    with tracking.store_errors():
        try:
            return mlflow.MlflowClient().get_model_version(name, wanted)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
    if str(aliases.get(alias)) != wanted:
        raise SettingsError(f"{key or '--version'}: {name} has no version {number}")
    raise SettingsError(
        f"{key or '--alias'}: the alias '{alias}' of {name} names version {wanted}, which does not "
        "exist; delete the alias: mlflow.MlflowClient().delete_registered_model_alias"
        f"('{name}', '{alias}')"
    )


def lasting_decision(
    version: ModelVersion, outcomes: Collection[str] = ("promoted", "rolled back")
) -> dict[str, str]:
    """MLflow tags of a version's promotion or rollback, which also hold when it is scored again.

    Tags of a refusal hold only for the scores that were refused.
    """
    if version.tags.get(OUTCOME) not in outcomes:
        return {}
    return {name: text for name, text in version.tags.items() if name.startswith(DECISION_TAG)}


@tracking.store_errors()
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
