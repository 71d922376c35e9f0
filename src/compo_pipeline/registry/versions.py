"""Versions of a registered model: find, load and list them, and move their aliases.

A store in a local file is locked while an alias is decided on. On a server the last write to an
alias wins: a concurrent move is detected, not prevented.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from click import ClickException
from filelock import FileLock, Timeout
from rich.console import Console

from compo_pipeline.configuration import SettingsError, nearest
from compo_pipeline.console import table as plain_table
from compo_pipeline.console import terminal
from compo_pipeline.models.identity import CONFIG_FILE
from compo_pipeline.models.loading import LoadedModel, ModelSettings, load
from compo_pipeline.registry import tracking

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

# Tag of a version: the outcome of the last decision about it.
OUTCOME = "promotion.outcome"
# Tags that versions of the same model have in common.
_SAME_MODEL = ("checkpoint_sha256", "precision")
_COLUMNS = ("dataset", "method", "variant", "seed", "headline", OUTCOME)

log = logging.getLogger(__name__)


class Contested(ClickException, RuntimeError):
    """Another process moved an alias at the same time."""


@dataclass(frozen=True, slots=True)
class Aliases:
    """Aliases of one registered model, moved with checks for concurrent moves.

    `settle` is the number of seconds after which a moved alias is read again.
    """

    name: str
    settle: float = 0.0

    def version(self, alias: str) -> int | None:
        """Number of the version that has the alias; None if no version has it."""
        import mlflow

        # The model's own list: asking for one alias cannot tell a missing one from an error.
        aliases = mlflow.MlflowClient().get_registered_model(self.name).aliases
        return int(aliases[alias]) if alias in aliases else None

    def move(self, alias: str, before: int | None, to: int) -> None:
        """Give an alias to a version.

        Args:
            alias: its name.
            before: the version that had it when the move was decided.
            to: the version that gets it.

        Raises:
            Contested: another version had it before the move, or has it after the move.
        """
        import mlflow

        self.expect(alias, before, "before it was moved; nothing was changed by this move")
        mlflow.MlflowClient().set_registered_model_alias(self.name, alias, str(to))
        time.sleep(self.settle)
        self.expect(alias, to, "after it was moved: another process moved it at the same time")

    def expect(self, alias: str, version: int | None, when: str) -> None:
        """Check which version has an alias.

        Raises:
            Contested: another one has it.
        """
        found = self.version(alias)
        if found != version:
            expected, actual = (
                "no version" if number is None else f"version {number}"
                for number in (version, found)
            )
            raise Contested(
                f"contested: the alias '{alias}' of {self.name} should be at {expected} "
                f"and is at {actual} {when}. Look at the registry, then run again"
            )


@contextmanager
def locked(uri: str) -> Iterator[None]:
    """Exclude other processes from decisions about a registry; on a server there is no lock."""
    file = tracking.local_file(uri)
    if file is None:
        yield
        return
    lock = FileLock(file.with_name(f"{file.name}.promotion.lock"))
    try:
        lock.acquire(blocking=False)
    except Timeout:
        log.info("Waiting for another promotion in the same store.")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def find(name: str, alias: str, number: int | None) -> ModelVersion:
    """Find a version of a registered model by its number or, without one, by its alias.

    Raises:
        SettingsError: there is none; the message lists the aliases.
    """
    import mlflow
    from mlflow.exceptions import MlflowException

    aliases = tracking.registered_model(name).aliases
    client = mlflow.MlflowClient()
    if number is not None:
        try:
            return client.get_model_version(name, str(number))
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            raise SettingsError(f"--version: {name} has no version {number}") from None
    if alias not in aliases:
        known = ", ".join(f"{each} (version {aliases[each]})" for each in sorted(aliases)) or "none"
        raise SettingsError(
            f"--alias: no version of {name} has the alias '{alias}'{nearest(alias, aliases)} "
            f"(known: {known}). `kedro run --pipeline=promotion` makes a challenger that passes "
            "the gate champion; --alias and --version show any other"
        )
    return client.get_model_version(name, str(aliases[alias]))


def load_version(version: ModelVersion, folder: Path, device: str) -> LoadedModel:
    """Load a version's model.

    Args:
        version: of the registry.
        folder: for a copy of its files.
        device: of the weights.

    Raises:
        SettingsError: its files are not those that were registered.
    """
    loaded = load(downloaded(version, folder), device)
    if version.tags.get("fingerprint") not in (None, loaded.fingerprint):
        raise SettingsError(
            f"registration.name: the files of version {version.version} are of other weights "
            "than its tag fingerprint says; register the model again"
        )
    return loaded


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


def downloaded(version: ModelVersion, folder: Path) -> Path:
    """Copy a version's artefacts below a folder and return the open_clip folder among them."""
    import mlflow

    uri = f"models:/{version.name}/{version.version}"
    artefacts = Path(mlflow.artifacts.download_artifacts(uri, dst_path=str(folder)))
    config = next(artefacts.rglob(CONFIG_FILE), None)
    if config is None:
        raise SettingsError(
            f"registration.name: {uri} holds no {CONFIG_FILE}: it was not registered by this "
            "project; take the alias from it"
        )
    return config.parent


def same_model(client: Any, name: str, tags: Mapping[str, str]) -> ModelVersion | None:
    """The latest version of the same checkpoint in the same precision, if there is one.

    Args:
        client: of the registry.
        name: of the model.
        tags: of the version to find again.
    """
    if any(tag not in tags for tag in _SAME_MODEL):
        return None
    same = " AND ".join(f"tags.{tag} = '{tags[tag]}'" for tag in _SAME_MODEL)
    found = client.search_model_versions(f"name = '{name}' AND {same}")
    return max(found, key=lambda each: int(each.version), default=None)


def run_of(version: ModelVersion) -> str | None:
    """Id of the version's run; None if the store has no such run."""
    return version.run_id if version.run_id and tracking.find(version.run_id) else None


def show_table(console: Console | None = None) -> None:
    """Print the versions of every registered model of the store, newest first."""
    import mlflow

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
