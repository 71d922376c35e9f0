"""Kedro hooks of every run.

Checks of the configuration, log lines, one-line errors, results; MLflow's store, and failed runs.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any, cast

from kedro.config import MissingConfigException
from kedro.framework.hooks import hook_impl
from pydantic import StrictInt
from rich.text import Text

from compo_pipeline import next_steps, offline
from compo_pipeline.configuration import (
    Name,
    PlainError,
    SettingsError,
    parse,
    settings,
    value_at,
    with_values,
)
from compo_pipeline.console import terminal
from compo_pipeline.datasets.settings import SCENES
from compo_pipeline.methods.registry import METHOD_SETTINGS, find
from compo_pipeline.models.settings import ModelSettings, needs_network
from compo_pipeline.parameters import keys, urls, variants
from compo_pipeline.preflight import inputs, resources
from compo_pipeline.preflight.in_use import RunLock
from compo_pipeline.preflight.settings import check_runner, check_settings, read_parameters
from compo_pipeline.registry.settings import TrackingSettings
from compo_pipeline.remote import RemoteError
from compo_pipeline.storage import DamagedFileError, DiskFullError, causes, is_full_disk

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kedro.config import OmegaConfigLoader
    from kedro.framework.context import KedroContext
    from kedro.io import CatalogProtocol
    from kedro.pipeline import Pipeline
    from kedro.pipeline.node import Node

log = logging.getLogger(__name__)

# Catalog entries that hold an MLflow run's id: of a training, of a study.
RUN_ENTRIES = frozenset({"run", "study"})
# Pages that are logged as a run of their own.
RUN_PAGES = frozenset({"suite_report", "comparison_report"})


@settings
class RunNames:
    """What names the folders of a run."""

    dataset: Name
    method: Name
    variant: Name
    seed: StrictInt


class ProjectHooks:
    """Checks before a run, log lines of nodes, and the results or an error after it."""

    def __init__(self) -> None:
        self._parameters: Mapping[str, Any] = {}
        self._lock = RunLock()

    @hook_impl
    def after_context_created(self, context: KedroContext) -> None:
        """Check keys and names, change to the project's folder, allow downloads where needed.

        Relative paths of the configuration are relative to the project.

        Raises:
            SettingsError: a key that is not in conf/base, or a name that no folder can have.
        """
        loader = cast("OmegaConfigLoader", context.config_loader)
        environment = loader.env or loader.default_run_env
        open_mappings = keys.check(
            Path(loader.conf_source), environment, loader.runtime_params or {}
        )
        parameters = keys.without_null(loader["parameters"], open_mappings)
        # Names with an underscore are YAML anchors and the like.
        parameters = {name: v for name, v in parameters.items() if not name.startswith("_")}
        _check_names(parameters)
        method = find(parameters["method"]).name
        parameters = variants.applied(parameters, loader.runtime_params or {}, environment)
        parameters = _with_own_benchmarks(parameters)
        if method not in parameters:
            raise SettingsError(
                f"method: there are no settings of '{method}'; add "
                f"{loader.conf_source}/{loader.base_env}/parameters_methods/{method}.yml"
            )
        parameters[METHOD_SETTINGS] = parameters[method]
        storage = parse(urls.RemoteSettings, parameters["remote"], "remote")
        parameters = urls.configure(parameters, storage, _credentials(loader))
        # The options of the command line, for commands shown to the user.
        command = {"env": loader.env, "params": dict(loader.runtime_params or {})}
        self._parameters = loader["parameters"] = {**parameters, "command": command}
        os.chdir(context.project_path)
        model = parse(ModelSettings, parameters["model"], "model")
        offline.set_hub_offline(not needs_network(model))

    @hook_impl
    def before_pipeline_run(
        self, run_params: Mapping[str, Any], pipeline: Pipeline, catalog: CatalogProtocol[Any, Any]
    ) -> None:
        """Check settings, inputs and resources before the first node starts, and lock the run.

        Raises:
            SettingsError: a value that a node cannot use, or a missing resource.
            MissingInput: an input of the pipeline does not exist.
            InUse: another command writes the same run.
        """
        check_settings(self._parameters, pipeline)
        check_runner(str(run_params["runner"]), self._parameters, pipeline)
        urls.refresh_all(self._parameters, read_parameters(pipeline))
        inputs.check_inputs(pipeline, catalog)
        resources.check_resources(self._parameters, pipeline, catalog)
        self._lock_run(run_params.get("pipeline_names") or [], pipeline, catalog)

    def _lock_run(
        self, names: Sequence[str], pipeline: Pipeline, catalog: CatalogProtocol[Any, Any]
    ) -> None:
        """Lock the run whose folders the pipeline writes; a study has a lock of its own."""
        outputs = pipeline.all_outputs()
        if "study" in outputs:
            return
        described = (catalog[entry]._describe() for entry in outputs if entry in catalog)
        written = [Path(each["filepath"]) for each in described if "filepath" in each]
        checkpoint = Path(value_at(self._parameters, "paths.checkpoint"))
        chosen = f" --pipeline={','.join(names)}" if names else ""
        command = f"kedro run{chosen}{next_steps.options(**self._parameters['command'])}"
        self._lock.acquire(checkpoint, written, command)

    @hook_impl
    def after_pipeline_run(self, pipeline: Pipeline, catalog: CatalogProtocol[Any, Any]) -> None:
        """Release the run, print the results and the usual next commands."""
        self._lock.release()
        next_steps.show_results(pipeline, catalog, self._parameters)

    @hook_impl(trylast=True)
    def on_pipeline_error(
        self, error: Exception, pipeline: Pipeline, catalog: CatalogProtocol[Any, Any]
    ) -> None:
        """Release the run; replace the error of a full disk, a damaged file, a storage or MLflow's
        store, and its traceback, by one line.

        Raises:
            DiskFullError: naming the file, or the disk with the least space.
            SettingsError: naming the damaged file and the pipeline that writes it, or the store.
            RemoteError: naming the URL.
        """
        self._lock.release()
        if is_full_disk(error):
            named = (each for each in causes(error) if isinstance(each, DiskFullError))
            disks = Path.cwd() / "data", Path(gettempdir()) / "temporary files"
            fullest = min(disks, key=lambda path: shutil.disk_usage(path.parent).free)
            raise next(named, DiskFullError(fullest)) from None
        for each in causes(error):
            if isinstance(each, RemoteError):
                raise each from None
            if not isinstance(error, PlainError) and _is_of_mlflow(each):
                from compo_pipeline.registry import tracking

                with tracking.store_errors():
                    raise each
            if isinstance(each, DamagedFileError):
                again = self._writing(each.path, pipeline, catalog)
                raise SettingsError(f"{each.message}; {again}") from None

    def _writing(self, path: Path, pipeline: Pipeline, catalog: CatalogProtocol[Any, Any]) -> str:
        """How to write a file of the catalog again, or one in a folder of the catalog."""
        own = path.resolve()
        for entry in sorted(pipeline.datasets()):
            dataset: Any = catalog.get(entry)
            filepath = dataset._describe().get("filepath") if dataset else None
            if filepath and Path(filepath).resolve() in (own, *own.parents):
                writer = inputs.writer_of(entry)
                if writer:
                    command = self._parameters["command"]
                    return f"write it again: {next_steps.kedro_run(writer, **command)}"
        return "run again the pipeline that writes it"

    @hook_impl
    def before_node_run(self, node: Node) -> None:
        """Log one line per node; Kedro's own would list all parameters."""
        log.info("%s -> %s", node.name, ", ".join(node.outputs))


class TrackingHook:
    """Configures MLflow before a pipeline that has a run; marks the run of a failing pipeline."""

    def __init__(self) -> None:
        self._context: KedroContext | None = None
        self._run_id: str | None = None

    @hook_impl
    def after_context_created(self, context: KedroContext) -> None:
        """Store the context, for the settings and the project's folder."""
        self._context = context

    @hook_impl(trylast=True)
    def before_pipeline_run(self, pipeline: Pipeline) -> None:
        """Configure MLflow if the pipeline logs into a run; importing it takes seconds, so the
        checks of settings and inputs come first.
        """
        self._run_id = None
        if self._context is not None and (RUN_ENTRIES | RUN_PAGES) & pipeline.datasets():
            from compo_pipeline.registry import tracking

            store = parse(TrackingSettings, self._context.params["tracking"], "tracking")
            tracking.configure(store, self._context.project_path)

    @hook_impl
    def after_dataset_loaded(self, dataset_name: str, data: Any) -> None:
        """Store the id of the run that this pipeline logs into, or has opened."""
        if dataset_name in RUN_ENTRIES:
            self._run_id = data["run_id"]

    after_dataset_saved = after_dataset_loaded

    @hook_impl
    def after_pipeline_run(self) -> None:
        """Print where MLflow shows the run's charts."""
        if self._run_id is None:
            return
        from compo_pipeline.registry import tracking

        try:
            url = tracking.charts_url(self._run_id)
        except SettingsError as problem:
            log.warning("the address of the run's charts is not known: %s", problem)
            return
        if url is not None:
            line = Text.assemble(("Charts in MLflow  ", "dim"), url)
            terminal(None).print(line, soft_wrap=True)

    @hook_impl
    def on_pipeline_error(self, error: Exception) -> None:
        """Mark the run as failed, even if an earlier stage had finished it.

        An error in a later command's settings does not concern the run.
        """
        if self._run_id is not None and not isinstance(error, SettingsError):
            from compo_pipeline.registry import tracking

            tracking.mark_failed(self._run_id, error)


def _is_of_mlflow(error: BaseException) -> bool:
    # Its import takes seconds, and without it there is no such error.
    exceptions = sys.modules.get("mlflow.exceptions")
    return exceptions is not None and isinstance(error, exceptions.MlflowException)


def _credentials(loader: OmegaConfigLoader) -> dict[str, Any]:
    try:
        return dict(loader["credentials"])
    except MissingConfigException:
        return {}


def _with_own_benchmarks(parameters: dict[str, Any]) -> dict[str, Any]:
    """Set the default of `benchmarks.root` for rendered scenes: the benchmarks in their folder."""
    data = parameters["data"]
    if data["format"] != SCENES:
        return parameters
    own = {
        "benchmarks.root": f"{data['root']}/benchmarks/test",
        "training.validation.benchmarks.root": f"{data['root']}/benchmarks/val",
        "tuning.benchmarks.root": f"{data['root']}/benchmarks/val",
    }
    unset = {key: root for key, root in own.items() if value_at(parameters, key) is None}
    return with_values(parameters, unset)


def _check_names(parameters: Mapping[str, Any]) -> None:
    # YAML reads a variant 2 as a number.
    names = {name: str(parameters[name]) for name in ("dataset", "method", "variant")}
    parse(RunNames, {**names, "seed": parameters["seed"]}, "")
