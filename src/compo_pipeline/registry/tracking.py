"""MLflow tracking: the store, and runs that training opens and later stages resume.

A run's id is passed on in the catalog (`run.json`), so one `kedro run`, several, or `dvc repro` all
log into one run. If the store does not know the id (outputs were pulled from elsewhere or restored
from a cache), a new run with the tag `restored_from` replaces it.
"""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from compo_pipeline.configuration import SettingsError, masked
from compo_pipeline.next_steps import kedro_run
from compo_pipeline.registry.settings import TrackingSettings
from compo_pipeline.storage import atomic_file

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.entities.model_registry import RegisteredModel

RESTORED_FROM = "restored_from"
ERROR = "error"
UNKNOWN_COMMIT = "unknown"
_SQLITE = "sqlite:///"
# MLflow's limits.
_NAME_LENGTH, _VALUE_LENGTH, _DIGEST_LENGTH = 250, 6000, 36
_BATCH_METRICS = 1000
# MLflow's own would let a server that is away hold every request for minutes.
_HTTP = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3", "MLFLOW_HTTP_REQUEST_TIMEOUT": "60"}
# While a server is away a training asks again after this many seconds at least, and spends a tenth
# of its time on it at most.
_PAUSE, _PATIENCE = 60.0, 9.0

log = logging.getLogger(__name__)


def configure(settings: TrackingSettings, project_path: Path) -> None:
    """Set MLflow's store and experiment in this process; a missing experiment is created."""
    import mlflow

    uri = connect(settings, project_path)
    mlflow.set_experiment(experiment_id=experiment_in(uri, settings.experiment, "tracking.uri"))


def connect(settings: TrackingSettings, project_path: Path) -> str:
    """Set MLflow's store in this process and return its URI."""
    import mlflow

    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    os.environ["MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING"] = str(settings.system_metrics).lower()
    for name, value in _HTTP.items():
        os.environ.setdefault(name, value)
    # Its line for every retry of every request would bury the one that says who does not answer.
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)
    uri = settings.uri
    if uri is None:
        # Absolute: MLflow takes a relative sqlite path from the working directory.
        folder = project_path.resolve() / "mlruns"
        folder.mkdir(exist_ok=True)
        uri = f"{_SQLITE}{folder / 'mlflow.db'}"
        # A new database is built in thirty migrations, each of which logs a line.
        logging.getLogger("alembic").setLevel(logging.WARNING)
        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)
    mlflow.set_tracking_uri(uri)
    mlflow.set_registry_uri(uri)
    return uri


def local_file(uri: str) -> Path | None:
    """The database file of a store; None for a server."""
    path = uri.partition("?")[0].removeprefix(_SQLITE)
    return Path(path) if uri.startswith(_SQLITE) and path else None


def experiment_in(uri: str, name: str, key: str) -> str:
    """Id of an experiment of a store, created if it is missing.

    Artefacts of a database in a file are stored beside it; a server configures its own place.

    Args:
        uri: of the store.
        name: of the experiment.
        key: of the setting that names the store.

    Raises:
        SettingsError: the store does not answer, or denies access.
    """
    import mlflow
    from mlflow.exceptions import MlflowException

    file = local_file(uri)
    with store_errors(uri, key):
        if file is not None:
            _create_database(file)
        client = mlflow.MlflowClient(uri)
        experiment = client.get_experiment_by_name(name)
        if experiment is None:
            artefacts = None if file is None else (file.resolve().parent / "artifacts").as_uri()
            try:
                return str(client.create_experiment(name, artefacts))
            except MlflowException:
                # Another process may have created it meanwhile.
                experiment = client.get_experiment_by_name(name)
                if experiment is None:
                    raise
        return str(experiment.experiment_id)


def _create_database(file: Path) -> None:
    """Create MLflow's database where it is missing, as a whole, by the first of several processes.

    MLflow builds it in place, in thirty migrations: a kill among them would leave a database that
    no run can use.
    """
    with FileLock(file.with_name(f"{file.name}.lock")):
        if file.exists():
            return
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

        with atomic_file(file.resolve()) as temporary:
            artefacts = (file.resolve().parent / "artifacts").as_uri()
            store: Any = SqlAlchemyStore(f"{_SQLITE}{temporary}", artefacts)  # type: ignore[no-untyped-call]
            store.engine.dispose()


def experiment_id() -> str:
    """Id of the configured experiment."""
    from mlflow.tracking.fluent import _get_experiment_id

    return str(_get_experiment_id())


def registered_model(name: str) -> RegisteredModel:
    """A registered model of the configured store.

    Raises:
        SettingsError: the store has no such model, does not answer, or denies access.
    """
    import mlflow
    from mlflow.exceptions import MlflowException

    with store_errors(mlflow.get_registry_uri(), "tracking.uri"):
        try:
            return mlflow.MlflowClient().get_registered_model(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
    raise SettingsError(
        f"registration.name: the registry has no model '{name}'; register one first (kedro run "
        "--pipeline=registration), or set tracking.uri to the registry that has it"
    )


@contextmanager
def store_errors(uri: str, key: str) -> Iterator[None]:
    """Turn errors of a store into one that names its setting, without passwords.

    Args:
        uri: of the store.
        key: of the setting that names it.

    Raises:
        SettingsError: the store does not answer, or denies access.
    """
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, SQLAlchemyError, ImportError, OSError) as error:
        raise SettingsError(f"{key}: cannot use {uri}: {error}") from None


@dataclass(frozen=True, slots=True)
class RunLog:
    """Logs into one run of the MLflow store; resumed runs and long values raise no error.

    Passwords in tags and parameters are masked.
    """

    run_id: str

    def tags(self, tags: Mapping[str, str]) -> None:
        """Set tags; an earlier value is replaced."""
        for name, value in tags.items():
            self._client().set_tag(self.run_id, name, masked(value))

    def params(self, nested: Mapping[str, Any]) -> None:
        """Log parameters under dotted names.

        MLflow never changes a parameter: if a resumed run has one with another value, the first
        value stays and the new one becomes the tag `changed.<name>`. A value that is too long for
        MLflow is cut; its full text belongs in an artefact.
        """
        from mlflow.entities import Param

        logged = self._client().get_run(self.run_id).data.params
        fresh, changed = [], {}
        for name, leaf in flatten(nested, "."):
            value = masked(str(leaf), name)[:_VALUE_LENGTH]
            if name not in logged:
                fresh.append(Param(name, value))
            elif logged[name] != value:
                changed[f"changed.{name}"[:_NAME_LENGTH]] = value
        self._client().log_batch(self.run_id, params=fresh)
        if changed:
            log.warning("the run keeps its first parameters; tagged: %s", ", ".join(changed))
            self.tags(changed)

    def metrics(self, nested: Mapping[str, Any], model_id: str | None = None) -> None:
        """Log the numbers of nested mappings under names joined by slashes, and nothing else.

        Lists, texts and nulls belong in an artefact. With a logged model's id the metrics are
        linked to that model too.
        """
        points = (
            (name, float(value), 0)
            for name, value in flatten(nested, "/")
            if isinstance(value, int | float)
        )
        self._log_points(points, model_id)

    def curves(self, rows: Iterable[Mapping[str, float]], prefix: str) -> None:
        """Log curves: every row has `step` and, under other names, the values at that step.

        A name with a group (`val/loss`) is unchanged; others get the prefix.
        """
        self._log_points(_curve_points(rows, prefix))

    def missing_curves(self, rows: Iterable[Mapping[str, float]], prefix: str) -> None:
        """Log the points of curves that the run lacks; `curves` describes the rows."""
        points = list(_curve_points(rows, prefix))
        logged = {
            (name, metric.step)
            for name in {name for name, _, _ in points}
            for metric in self._client().get_metric_history(self.run_id, name)
        }
        self._log_points(point for point in points if (point[0], point[2]) not in logged)

    def artefact(self, path: Path, folder: str | None = None) -> None:
        """Log a file, or a folder's files into `folder` (by default of the same name)."""
        if path.is_dir():
            self._client().log_artifacts(self.run_id, str(path), folder or path.name)
        else:
            self._client().log_artifact(self.run_id, str(path), folder)

    def document(self, content: Mapping[str, Any], name: str) -> None:
        """Log a mapping as a .json or .yaml file, by the name's suffix."""
        self._client().log_dict(self.run_id, dict(content), name)

    def dataset(self, name: str, digest: str, root: str | None, context: str) -> None:
        """Log which data the run has read, as one of MLflow's dataset inputs.

        Args:
            name: of the dataset.
            digest: hash of its content.
            root: its folder, if any.
            context: `training` or `evaluation`.
        """
        from mlflow.entities import Dataset, DatasetInput, InputTag
        from mlflow.utils.mlflow_tags import MLFLOW_DATASET_CONTEXT

        source = json.dumps({} if root is None else {"uri": root})
        tags = [InputTag(MLFLOW_DATASET_CONTEXT, context), InputTag("digest", digest)]
        dataset = Dataset(name, digest[:_DIGEST_LENGTH], "local", source)
        self._client().log_inputs(self.run_id, [DatasetInput(dataset, tags)])

    def _log_points(
        self, points: Iterable[tuple[str, float, int]], model_id: str | None = None
    ) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = (
            Metric(name, value, now, step, model_id=model_id) for name, value, step in points
        )
        while batch := list(islice(metrics, _BATCH_METRICS)):
            self._client().log_batch(self.run_id, metrics=batch)

    def _client(self) -> Any:
        import mlflow

        return mlflow.MlflowClient()


@dataclass
class LiveCurves:
    """Curves of trainings, logged as they run; these go on while the store does not answer.

    Who adds points stores them too, so none is lost: `RunLog.missing_curves` logs at the end what a
    run lacks. It can be pickled.
    """

    prefix: str
    _away: bool = field(init=False, default=False)
    _next_try: float = field(init=False, default=0.0)

    def add(self, record: RunLog, rows: Iterable[Mapping[str, float]]) -> bool:
        """Log points, unless the store is known to be away; whether they are logged."""
        import mlflow
        from mlflow.exceptions import MlflowException

        started = time.monotonic()
        if started < self._next_try:
            return False
        try:
            record.curves(rows, self.prefix)
        except MlflowException as error:
            spent = time.monotonic() - started
            self._next_try = time.monotonic() + max(_PAUSE, _PATIENCE * spent)
            if not self._away:
                reason = masked(str(error)).partition("\n")[0]
                log.warning(
                    "tracking.uri: %s does not answer; training goes on, and the points that the "
                    "run lacks are logged at the end (%s)",
                    *(masked(mlflow.get_tracking_uri()), reason[:300]),
                )
            self._away = True
            return False
        self._away = False
        return True


def _curve_points(
    rows: Iterable[Mapping[str, float]], prefix: str
) -> Iterator[tuple[str, float, int]]:
    """Name in the store, value and step of each point."""
    for row in rows:
        for name, value in row.items():
            if name != "step":
                yield name if "/" in name else f"{prefix}/{name}", float(value), int(row["step"])


def flatten(nested: Mapping[str, Any], separator: str) -> Iterator[tuple[str, Any]]:
    """Leaves of nested mappings under joined names of the characters that MLflow allows."""
    for key, value in nested.items():
        name = re.sub(r"[^\w\-./ ]", "_", str(key))
        if isinstance(value, Mapping) and value:
            for inner, leaf in flatten(value, separator):
                yield f"{name}{separator}{inner}"[:_NAME_LENGTH], leaf
        else:
            yield name[:_NAME_LENGTH], value


def open_run(name: str, tags: Mapping[str, str], project_path: Path | None = None) -> str:
    """Open a run in the configured experiment and return its id; `adopt` logs into it.

    The tags `git_commit` and `git_dirty` describe the repository of `project_path`, by default of
    the working directory.
    """
    import mlflow
    from mlflow.tracking.context.registry import resolve_tags

    _require_configured()
    commit, dirty = git_state(project_path or Path.cwd())
    all_tags = {
        **tags,
        "git_commit": commit,
        "git_dirty": str(dirty).lower(),
        "mlflow.source.git.commit": commit,
        "mlflow.source.name": "compo-pipeline",
        "mlflow.source.type": "PROJECT",
    }
    run = mlflow.MlflowClient().create_run(
        experiment_id(), run_name=name, tags=resolve_tags(all_tags)
    )
    return str(run.info.run_id)


@contextmanager
def adopt(run_id: str) -> Iterator[RunLog]:
    """Resume a run, also an ended one, as MLflow's active run; an error within marks it as failed.

    If the store does not know the id, the run that replaces it has another one.

    Raises:
        SettingsError: the store does not answer, or denies access.
    """
    import mlflow
    from mlflow.exceptions import MlflowException

    _require_configured()
    uri = mlflow.get_tracking_uri()
    with store_errors(uri, "tracking.uri"):
        run = find(run_id) or _restored(run_id)
        configured = experiment_id()
        # MLflow refuses to resume a run of another experiment than the active one.
        mlflow.set_experiment(experiment_id=run.info.experiment_id)
        mlflow.start_run(run_id=run.info.run_id, nested=True)
    try:
        yield RunLog(run.info.run_id)
    except BaseException as error:
        # A store that does not answer must not hide the error.
        with suppress(MlflowException):
            mlflow.end_run("FAILED")
            mlflow.set_experiment(experiment_id=configured)
        if not isinstance(error, MlflowException):
            raise
        with store_errors(uri, "tracking.uri"):
            raise
    with store_errors(uri, "tracking.uri"):
        mlflow.end_run()
        mlflow.set_experiment(experiment_id=configured)


def child_run(run_id: str, name: str) -> str:
    """Id of a run's child run of that name, opened if it is missing.

    It has the parent's tags, the parent's name as a prefix, and the tag `role`.
    """
    import mlflow
    from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID, MLFLOW_RUN_NAME

    client = mlflow.MlflowClient()
    parent = client.get_run(run_id)
    query = f"tags.{MLFLOW_PARENT_RUN_ID} = '{run_id}' AND tags.role = '{name}'"
    found = client.search_runs([parent.info.experiment_id], query, max_results=1)
    if found:
        return str(found[0].info.run_id)
    # `_restored` must find the parent alone.
    excluded = (MLFLOW_RUN_NAME, RESTORED_FROM, ERROR)
    tags = {key: value for key, value in parent.data.tags.items() if key not in excluded}
    child = client.create_run(
        parent.info.experiment_id,
        run_name=f"{parent.info.run_name}-{name}",
        tags={**tags, MLFLOW_PARENT_RUN_ID: run_id, "role": name},
    )
    return str(child.info.run_id)


def mark_failed(run_id: str, error: Exception) -> None:
    """Mark a run as failed after it was closed; a store that does not answer is logged."""
    import mlflow

    try:
        with store_errors(mlflow.get_tracking_uri(), "tracking.uri"):
            if find(run_id) is not None:
                client = mlflow.MlflowClient()
                client.set_tag(run_id, ERROR, masked(f"{type(error).__name__}: {error}")[:500])
                client.set_terminated(run_id, "FAILED")
    except SettingsError as problem:
        log.warning("the run is not marked as failed: %s", problem)


def find(run_id: str) -> Run | None:
    """The run in the store; None if it is unknown or deleted."""
    import mlflow
    from mlflow.exceptions import MlflowException

    try:
        run = mlflow.MlflowClient().get_run(run_id)
    except MlflowException as error:
        if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            return None
        raise
    return run if run.info.lifecycle_stage == "active" else None


def git_state(folder: Path) -> tuple[str, bool]:
    """Commit of the repository around a folder, and whether files outside data/ differ from it.

    Without a repository, or without git, the commit is `unknown`.
    """

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changes = git("status", "--porcelain", "--", ".", ":(exclude)data")
        return git("rev-parse", "HEAD"), bool(changes)
    except (OSError, subprocess.CalledProcessError):
        return UNKNOWN_COMMIT, False


def provenance(command: Mapping[str, Any], pipeline: str) -> dict[str, str]:
    """Date, command line and commit of a page.

    Args:
        command: environment and parameters of the command line (`params:command`).
        pipeline: that writes the page.
    """
    commit, dirty = git_state(Path.cwd())
    changes = ", with uncommitted changes" if dirty else ""
    return {
        "date": f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}",
        "command": kedro_run(pipeline, command["env"], command["params"]),
        "commit": f"{commit[:12]}{changes}",
    }


def _require_configured() -> None:
    from mlflow.tracking import is_tracking_uri_set

    if not is_tracking_uri_set():  # type: ignore[no-untyped-call]
        raise RuntimeError(
            "no MLflow store is set: call compo_pipeline.registry.tracking.configure first "
            "(under `kedro run` the project's hook does)"
        )


def _restored(run_id: str) -> Run:
    """The run that replaces an unknown one; an earlier stage may have opened it."""
    import mlflow

    client = mlflow.MlflowClient()
    query = f"tags.{RESTORED_FROM} = '{run_id}'"
    found = client.search_runs([experiment_id()], query, max_results=1)
    if found:
        return found[0]
    log.warning("MLflow run %s is not in this store; a new run, restored_from it, is used", run_id)
    return client.get_run(open_run(f"restored-{run_id[:8]}", {RESTORED_FROM: run_id}))
