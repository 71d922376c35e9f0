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

from filelock import FileLock, Timeout
from kedro.framework.hooks import hook_impl
from rich.text import Text

from compo_pipeline.core.console import terminal
from compo_pipeline.core.files import DamagedFileError, DiskFullError, causes, is_full_disk
from compo_pipeline.core.provenance import kedro_run, options
from compo_pipeline.core.remote import RemoteError, refresh_all
from compo_pipeline.core.settings import PlainError, SettingsError, leaves, plain
from compo_pipeline.project.settings import check_settings, place_of, read_parameters

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kedro.config import OmegaConfigLoader
    from kedro.io import CatalogProtocol
    from kedro.pipeline import Pipeline
    from kedro.pipeline.node import Node
    from rich.console import Console

    from compo_pipeline.core.provenance import CommandOptions
    from compo_pipeline.project.settings import SettingsContext

log = logging.getLogger(__name__)

# Catalog entry with the id of a training's MLflow run.
RUN_ENTRY = "run"
MONITORING = "monitoring"
"""Catalog entry with a report of monitoring."""
# Pages that are logged as a run of their own.
RUN_PAGES = frozenset({"suite_report", "comparison_report", "monitoring_report", "tuning_report"})
# Folders of models to name at the end, besides the pages.
_MODELS = ("export", "base_model")


class ProjectHooks:
    """Kedro hooks that check a run, track it, and print results or an error."""

    def __init__(self) -> None:
        self._context: SettingsContext
        self._lock: FileLock | None = None
        self._run_id: str | None = None

    @hook_impl
    def after_context_created(self, context: SettingsContext) -> None:
        """Keep the context, which has the settings of the run."""
        self._context = context

    @hook_impl
    def before_pipeline_run(
        self, run_params: Mapping[str, Any], pipeline: Pipeline, catalog: CatalogProtocol[Any, Any]
    ) -> None:
        """Check settings, inputs and resources before the first node starts, and lock the run.

        Raises:
            SettingsError: a value that a node cannot use, a missing resource, or another command
                that writes the same run.
            MissingInput: an input of the pipeline does not exist.
        """
        from compo_pipeline.project.problems import check_inputs, check_resources

        settings = self._context.settings
        loader = cast("OmegaConfigLoader", self._context.config_loader)
        check_settings(settings, pipeline, place_of(loader))
        refresh_all(plain(settings), read_parameters(pipeline))
        check_inputs(pipeline, catalog)
        check_resources(settings, self._context.command, pipeline)
        self._lock_run(pipeline, catalog)
        self._configure_tracking(pipeline)

    def _lock_run(self, pipeline: Pipeline, catalog: CatalogProtocol[Any, Any]) -> None:
        """Lock the run's folder if the pipeline writes into it.

        Workers share a tuning study.
        """
        outputs, run = pipeline.all_outputs(), Path(self._context.settings.paths.resume).parent
        described = (catalog[entry]._describe() for entry in outputs if entry in catalog)
        name = "/".join(run.parts[-4:])  # <dataset>/<method>/<variant>/seed=<n>
        if "study" in outputs or not any(name in str(each.get("filepath")) for each in described):
            return
        self._lock = FileLock(run / "in_use.lock")
        run.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire(blocking=False)
        except Timeout:
            raise SettingsError(
                f"{run} is in use by another command; wait for its end, or name another run by "
                "--params variant=<name> or seed=<n>"
            ) from None

    def _configure_tracking(self, pipeline: Pipeline) -> None:
        """Configure MLflow if the pipeline logs into an MLflow run.

        Importing it takes seconds.
        """
        self._run_id = None
        if ({RUN_ENTRY} | RUN_PAGES) & pipeline.datasets():
            from compo_pipeline.registry import runs as tracking

            tracking.configure(self._context.settings.tracking, self._context.project_path)

    @hook_impl
    def after_dataset_loaded(self, dataset_name: str, data: Any) -> None:
        """Remember the id of the MLflow run that a loaded dataset records, to log into that run."""
        if dataset_name == RUN_ENTRY:
            self._run_id = data["run_id"]

    after_dataset_saved = after_dataset_loaded

    def _show_charts(self) -> None:
        """Print how to see the run's charts in MLflow."""
        if self._run_id is None:
            return
        from compo_pipeline.registry import runs as tracking

        try:
            lines = tracking.charts(self._run_id)
        except SettingsError as problem:
            log.warning("the address of the run's charts is not known: %s", problem)
            return
        for label, line in zip(("Charts in MLflow", ""), lines, strict=False):
            terminal(None).print(Text.assemble((f"{label:<18}", "dim"), line), soft_wrap=True)

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()

    @hook_impl
    def after_pipeline_run(self, pipeline: Pipeline, catalog: CatalogProtocol[Any, Any]) -> None:
        """Release the lock, print results and next commands, and raise an alarm of monitoring.

        Raises:
            Alarm: a report of monitoring has one.
        """
        self._unlock()
        self._show_charts()
        show_results(pipeline, catalog, self._context.settings.promotion, self._context.command)
        if MONITORING in pipeline.all_outputs():
            from compo_pipeline.serving.monitoring.report import check as check_alarm

            # Here, where all nodes have run: Kedro would say how to resume a failed one.
            check_alarm(catalog.load(MONITORING))

    @hook_impl(trylast=True)
    def on_pipeline_error(
        self, error: Exception, pipeline: Pipeline, catalog: CatalogProtocol[Any, Any]
    ) -> None:
        """Release the lock, mark the MLflow run as failed, and raise known errors as one line.

        These are errors of a full disk, a damaged file, a storage or MLflow's store. An error in a
        later command's settings does not concern the MLflow run.

        Raises:
            DiskFullError: naming the file, or else the disk with the least space.
            SettingsError: naming the damaged file and the pipeline that writes it, or the store.
            RemoteError: naming the URL.
        """
        self._unlock()
        if self._run_id is not None and not isinstance(error, SettingsError):
            from compo_pipeline.registry import runs as tracking

            tracking.mark_failed(self._run_id, error)
        if is_full_disk(error):
            named = (each for each in causes(error) if isinstance(each, DiskFullError))
            disks = Path.cwd() / "data" / "files", Path(gettempdir()) / "temporary files"
            fullest = min(disks, key=lambda path: shutil.disk_usage(path.parent).free)
            raise next(named, DiskFullError(fullest)) from None
        for each in causes(error):
            if isinstance(each, RemoteError):
                raise each from None
            if not isinstance(error, PlainError) and _is_mlflow_error(each):
                from compo_pipeline.registry import runs as tracking

                with tracking.store_errors():
                    raise each
            if isinstance(error, PlainError) and not isinstance(error, DamagedFileError):
                continue  # its message says more than those of its causes
            if isinstance(each, DamagedFileError):
                again = self._rewrite_hint(each.path, pipeline, catalog)
                raise SettingsError(f"{each.message}; {again}") from None
            # Kedro replaces an error within a dataset by its own, with this one as its cause.
            if each is not error and isinstance(each, PlainError):
                raise each from None

    def _rewrite_hint(
        self, path: Path, pipeline: Pipeline, catalog: CatalogProtocol[Any, Any]
    ) -> str:
        """Hint at the command that writes a damaged catalog file again."""
        from compo_pipeline.project.problems import writer_of

        own = path.resolve()
        for entry in sorted(pipeline.datasets()):
            dataset: Any = catalog.get(entry)
            filepath = dataset._describe().get("filepath") if dataset else None
            if filepath and Path(filepath).resolve() in (own, *own.parents):
                writer = writer_of(entry)
                if writer:
                    command = self._context.command
                    again = kedro_run(writer, command.env, command.params)
                    return f"write it again: {again}"
        return "run again the pipeline that writes it"

    @hook_impl
    def before_node_run(self, node: Node) -> None:
        """Log a line with the node's name and outputs before it runs."""
        written = f" -> {', '.join(node.outputs)}" if node.outputs else ""
        log.info("%s%s", node.name, written)


def show_results(
    pipeline: Pipeline,
    catalog: CatalogProtocol[Any, Any],
    promotion: Any,
    typed: CommandOptions,
    console: Console | None = None,
) -> None:
    """Print the existing results of a finished pipeline, and the usual next commands.

    Args:
        pipeline: the finished one.
        catalog: Kedro's data catalog.
        promotion: the settings of promotion.
        typed: options of the run.
        console: the terminal by default.
    """
    outputs = dict.fromkeys(name for node in pipeline.nodes for name in node.outputs)
    made = [name for name in outputs if name in catalog and catalog.exists(name)]
    rows = []
    for name in made:
        described = catalog[name]._describe()
        label = name.replace("_", " ").capitalize()
        if "page" in described:
            # A folder without its page: there was nothing to show.
            pages = Path(described["filepath"]).rglob(Path(described["page"]).name)
            rows += [(label, os.path.relpath(page)) for page in pages]
        elif name in _MODELS:
            rows.append((label, os.path.relpath(described["filepath"])))
        elif name == "metrics":
            path = os.path.relpath(described["filepath"])
            rows.append((label, f"{path}, to be committed: `dvc metrics diff` compares commits"))
        elif name == "validation_result":
            rows += [("Captions", one) for one in catalog.load(name)["warnings"]]
    commands: dict[str, str] = {}
    if registered := next((name for name in made if name in ("registered", "rescored")), None):
        version = catalog.load(registered)
        rows.append(("Registered", f"{version['name']} version {version['version']}"))
        if alias := version["alias"]:
            commands["kedro run --pipeline=promotion"] = "the champion, if it passes the gate"
            commands[f"compo-pipeline try --alias {alias}"] = "base and model in a browser"
    elif "promotion_report" in made and not promotion.dry_run:
        commands["compo-pipeline serve"] = "the champion over HTTP"
        commands["compo-pipeline try"] = "base and champion in a browser"
    if not rows:
        return
    console = terminal(console)
    width = max(len(label) for label, _ in rows) + 2
    lines = [Text(), *(Text.assemble((f"{label:<{width}}", "dim"), shown) for label, shown in rows)]
    # What this command did is not to be repeated: a rollback, another gate.
    given = leaves(typed.params)
    others = {name: value for name, value in given if not name.startswith("promotion.")}
    for command, purpose in commands.items():
        lines += [
            Text(),
            Text(f"# {purpose}", style="dim"),
            Text(command + options(typed.env, others)),
        ]
    for line in lines:
        # Unwrapped, so that paths and commands can be copied.
        console.print(line, soft_wrap=True)


def _is_mlflow_error(error: BaseException) -> bool:
    """Whether an error was raised by MLflow."""
    # Its import takes seconds, and without it there is no such error.
    exceptions = sys.modules.get("mlflow.exceptions")
    return exceptions is not None and isinstance(error, exceptions.MlflowException)
