"""What happens around every run: configuration is checked first, and every node has its line."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from kedro.framework.hooks import hook_impl

from compo_pipeline import afterwards, beforehand, keys, preflight, quiet
from compo_pipeline.configuration import SettingsError, parse
from compo_pipeline.datasets.settings import SCENES
from compo_pipeline.methods.registry import METHOD_SETTINGS, find
from compo_pipeline.models.settings import ModelSettings, needs_network

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kedro.config import OmegaConfigLoader
    from kedro.framework.context import KedroContext
    from kedro.io import CatalogProtocol
    from kedro.pipeline import Pipeline
    from kedro.pipeline.node import Node

log = logging.getLogger(__name__)

# These become names of folders.
_NAMES = ("dataset", "method", "variant")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class ProjectHooks:
    """What every session needs; whatever belongs to a run is a node."""

    def __init__(self) -> None:
        self._parameters: Mapping[str, Any] = {}

    @hook_impl
    def after_context_created(self, context: KedroContext) -> None:
        """Refuse mistaken keys, go to the project's folder, allow downloads that were asked for.

        Relative paths of the configuration are relative to the project, wherever the command
        was typed.

        Raises:
            SettingsError: a key that conf/base does not name, or a name no folder can have.
        """
        loader = cast("OmegaConfigLoader", context.config_loader)
        environment = loader.env or loader.default_run_env
        open_mappings = keys.check(
            Path(loader.conf_source), environment, loader.runtime_params or {}
        )
        parameters = keys.without_null(loader["parameters"], open_mappings)
        # Names with an underscore only serve the other values.
        parameters = {name: v for name, v in parameters.items() if not name.startswith("_")}
        parameters = _with_own_benchmarks(parameters)
        _check_names(parameters)
        method = find(parameters["method"]).name
        if method not in parameters:
            raise SettingsError(
                f"method: there are no settings of '{method}'; add "
                f"{loader.conf_source}/{loader.base_env}/parameters_methods/{method}.yml"
            )
        parameters[METHOD_SETTINGS] = parameters[method]
        # What was typed, for commands that are shown to the user.
        typed = {"env": loader.env, "params": dict(loader.runtime_params or {})}
        self._parameters = loader["parameters"] = {**parameters, "command": typed}
        os.chdir(context.project_path)
        quiet.offline(unless=needs_network(parse(ModelSettings, parameters["model"], "model")))

    @hook_impl
    def before_pipeline_run(self, pipeline: Pipeline, catalog: CatalogProtocol[Any, Any]) -> None:
        """Refuse what cannot end well before the first node starts.

        Raises:
            SettingsError: a value that a node could not use, or something outside that is not
                there.
            NotThere: something that the pipeline reads has not been made.
        """
        beforehand.check_settings(self._parameters, pipeline)
        beforehand.check_inputs(pipeline, catalog)
        preflight.check(self._parameters, pipeline, catalog)

    @hook_impl
    def after_pipeline_run(self, pipeline: Pipeline, catalog: CatalogProtocol[Any, Any]) -> None:
        """Print where the results are, and the commands that usually come next."""
        afterwards.show(pipeline, catalog, self._parameters)

    @hook_impl
    def before_node_run(self, node: Node) -> None:
        """One line for every node: Kedro's own lists all parameters."""
        log.info("%s -> %s", node.name, ", ".join(node.outputs))


def _with_own_benchmarks(parameters: dict[str, Any]) -> dict[str, Any]:
    """Rendered scenes are asked about in the benchmarks beside them, other data in none.

    Where others are wanted, `benchmarks.root` names them.
    """
    data, training, tuning = (parameters[key] for key in ("data", "training", "tuning"))
    validation = training["validation"]
    if data["format"] != SCENES:
        return parameters

    def beside(benchmarks: Mapping[str, Any], split: str) -> dict[str, Any]:
        own = f"{data['root']}/benchmarks/{split}"
        return {**benchmarks, "root": own if benchmarks["root"] is None else benchmarks["root"]}

    return {
        **parameters,
        "benchmarks": beside(parameters["benchmarks"], "test"),
        "training": {
            **training,
            "validation": {**validation, "benchmarks": beside(validation["benchmarks"], "val")},
        },
        "tuning": {**tuning, "benchmarks": beside(tuning["benchmarks"], "val")},
    }


def _check_names(parameters: Mapping[str, Any]) -> None:
    if not isinstance(parameters["seed"], int):
        raise SettingsError(f"seed: expected a whole number, got {parameters['seed']!r}")
    for key in _NAMES:
        if not _NAME.fullmatch(str(parameters[key])):
            raise SettingsError(
                f"{key}: {parameters[key]!r} names a folder: letters, digits, '_', '-' and '.' only"
            )
