"""From the registry to the two models of a page."""

from __future__ import annotations

import logging
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from compo_pipeline.configuration import SettingsError, nearest
from compo_pipeline.methods import registry as methods
from compo_pipeline.models.loading import ModelSettings
from compo_pipeline.registry import tracking
from compo_pipeline.registry.versions import load_base, load_version
from compo_pipeline.ui.trying import Pair

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Opened:
    """A registered version, loaded beside its base.

    Attributes:
        name: of the registered model.
        version: its number.
        method: what it was fine-tuned by.
        pair: the two models.
    """

    name: str
    version: int
    method: str
    pair: Pair

    @property
    def title(self) -> str:
        """The version, its method and its base, on a line."""
        return (
            f"{self.name}, version {self.version}: {self.method}, "
            f"fine-tuned from {self.pair.base.name}"
        )


def find(name: str, alias: str, number: int | None) -> ModelVersion:
    """A version of a registered model.

    Args:
        name: the registered model.
        alias: of the version.
        number: the version itself, whatever its aliases.

    Raises:
        SettingsError: there is none; the message says what there is.
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
        there = ", ".join(f"{each} (version {aliases[each]})" for each in sorted(aliases)) or "none"
        raise SettingsError(
            f"--alias: no version of {name} has the alias '{alias}'{nearest(alias, aliases)} "
            f"(there: {there}). `kedro run --pipeline=promotion` makes a challenger that passes "
            "the gate champion; --alias and --version show any other"
        )
    return client.get_model_version(name, str(aliases[alias]))


def open_version(version: ModelVersion, label: str, base: ModelSettings, device: str) -> Opened:
    """Load a version and the base that it was fine-tuned from.

    Args:
        version: of `find`.
        label: what the version is called beside its base.
        base: the base's settings.
        device: where both go.

    Raises:
        SettingsError: `model` names another base, or the version is not what this project
            registered.
    """
    before = load_base(version, base, device)
    with tempfile.TemporaryDirectory() as temporary:
        after = load_version(version, Path(temporary), device)
    method = version.tags.get("method", "unknown method")
    log.info("%s version %s is loaded, and its base.", version.name, version.version)
    return Opened(
        name=version.name,
        version=int(version.version),
        method=methods.label(method),
        pair=Pair(before, after, label),
    )
