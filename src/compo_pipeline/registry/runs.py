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
import shlex
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mlflow
from filelock import FileLock
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, Run
from mlflow.entities.model_registry import RegisteredModel
from mlflow.exceptions import MlflowException
from mlflow.tracking import is_tracking_uri_set
from mlflow.tracking.context.registry import resolve_tags
from mlflow.tracking.fluent import _get_experiment_id
from mlflow.utils.mlflow_tags import (
    MLFLOW_DATASET_CONTEXT,
    MLFLOW_PARENT_RUN_ID,
    MLFLOW_RUN_NAME,
)
from sqlalchemy.exc import SQLAlchemyError

from compo_pipeline.core.files import atomic_file, write_files
from compo_pipeline.core.hashing import hash_of
from compo_pipeline.core.provenance import git_state
from compo_pipeline.core.settings import SettingsError, masked
from compo_pipeline.registry.tracking_settings import TrackingSettings

RESTORED_FROM = "restored_from"
ERROR = "error"
_SQLITE = "sqlite:///"
# Folder beside a database in a file.
_ARTEFACTS = "artifacts"
# Columns of MLflow's database that hold places of artefacts.
_PLACES = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
)
# MLflow's page has a view for language models, which comes first, and one for training: releases
# of MLflow 3 choose by the experiment's kind, by the address, or by the switch at the top left.
_OF_MODELS = {"mlflow.experimentKind": "custom_model_development"}
_VIEW = "workflowType=machine_learning"
# Where `mlflow ui` listens.
_LOCAL_PAGE = "http://127.0.0.1:5000"
# MLflow's own would let a server that is away hold every request for minutes.
_HTTP = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3", "MLFLOW_HTTP_REQUEST_TIMEOUT": "60"}
# MLflow's limits.
_NAME_LENGTH, _VALUE_LENGTH, _DIGEST_LENGTH = 250, 6000, 36
_BATCH_METRICS = 1000
# While a server is away a training asks again after this many seconds at least, and spends a tenth
# of its time on it at most.
_PAUSE, _PATIENCE = 300.0, 9.0

log = logging.getLogger(__name__)


def configure(settings: TrackingSettings, project_path: Path) -> None:
    """Set MLflow's store and experiment for this process.

    A missing experiment is created.

    Artefacts of a database in a file are stored beside it; a server configures its own place.

    Raises:
        SettingsError: the store does not answer, or denies access.
    """
    uri = connect(settings, project_path)
    file = local_file(uri)
    with store_errors():
        if file is not None:
            _create_database(file)
        client = mlflow.MlflowClient()
        if client.get_experiment_by_name(settings.experiment) is None:
            place = None if file is None else (file.resolve().parent / _ARTEFACTS).as_uri()
            # Another process may create it meanwhile.
            with suppress(MlflowException):
                client.create_experiment(settings.experiment, place, tags=_OF_MODELS)
        mlflow.set_experiment(settings.experiment)


def connect(settings: TrackingSettings, project_path: Path) -> str:
    """Set MLflow's store for this process and return its URI."""
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    os.environ.setdefault("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "false")
    for name, value in _HTTP.items():
        os.environ.setdefault(name, value)
    # Its line for every retry of every request would bury the one that says who does not answer.
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)
    uri = settings.uri or _own_store(project_path)
    if settings.uri is None:
        # A new database is built in thirty migrations, each of which logs a line.
        logging.getLogger("alembic").setLevel(logging.WARNING)
        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)
    file = local_file(uri)
    if file and file.is_file() and file.resolve().is_relative_to(project_path.resolve()):
        _relocate(file)
    mlflow.set_tracking_uri(uri)
    mlflow.set_registry_uri(uri)
    return uri


def _own_store(project_path: Path) -> str:
    """URI of the store in a project's folder mlruns, which is created if it is missing."""
    # Absolute: MLflow takes a relative sqlite path from the working directory.
    folder = project_path.resolve() / "mlruns"
    folder.mkdir(exist_ok=True)
    return f"{_SQLITE}{folder / 'mlflow.db'}"


def _relocate(file: Path) -> None:
    """Make the store of a copied or moved project name the artefacts beside it."""
    own = (file.resolve().parent / _ARTEFACTS).as_uri()
    _, folder, name = own.rsplit("/", 2)
    query = "SELECT DISTINCT artifact_location FROM experiments WHERE artifact_location GLOB ?"
    with closing(sqlite3.connect(file)) as database, database:
        found: list[tuple[str]] = []
        with suppress(sqlite3.Error):  # MLflow will say that it is no database of its own
            found = database.execute(query, (f"file:*/{folder}/{name}",)).fetchall()
        for (old,) in sorted({*found} - {(own,)}):
            log.warning("%s named artefacts in %s, from now on those in %s", file, old, own)
            for table, column in _PLACES:
                database.execute(
                    f"UPDATE {table} SET {column} = replace({column}, ?1, ?2) "
                    f"WHERE instr({column}, ?1) = 1",
                    (old, own),
                )


def local_file(uri: str) -> Path | None:
    """Path of the database file of an MLflow store, or None if the store is a server."""
    path = uri.partition("?")[0].removeprefix(_SQLITE)
    return Path(path) if uri.startswith(_SQLITE) and path else None


def _create_database(file: Path) -> None:
    """Create MLflow's database file if it is missing, atomically and by only one process.

    MLflow builds it in place, in thirty migrations: a kill among them would leave a database that
    no run can use.
    """
    with FileLock(file.with_name(f"{file.name}.lock")):
        if file.exists():
            return
        # Its import takes a second.
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

        with atomic_file(file.resolve()) as temporary:
            artefacts = (file.resolve().parent / _ARTEFACTS).as_uri()
            store: Any = SqlAlchemyStore(f"{_SQLITE}{temporary}", artefacts)  # type: ignore[no-untyped-call]
            store.engine.dispose()


def experiment_id() -> str:
    """Id of the MLflow experiment that this process has configured.

    Raises:
        RuntimeError: none is configured in this process; MLflow would use one of its own.
    """
    if not is_tracking_uri_set():  # type: ignore[no-untyped-call]
        raise RuntimeError(
            "no MLflow store is set: call compo_pipeline.registry.runs.configure first "
            "(under `kedro run` the project's hook does)"
        )
    return str(_get_experiment_id())


def registered_model(name: str, key: str = "registration.name") -> RegisteredModel:
    """The model with a name in the configured MLflow registry.

    Args:
        name: name of the model.
        key: the setting or option that names it, for errors.

    Raises:
        SettingsError: the store has no such model, does not answer, or denies access.
    """
    with store_errors():
        try:
            return mlflow.MlflowClient().get_registered_model(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
    raise SettingsError(
        f"{key}: the registry has no model '{name}'; register one first (kedro run "
        "--pipeline=registration), or set tracking.uri to the registry that has it"
    )


@contextmanager
def store_errors() -> Iterator[None]:
    """Context manager: errors of MLflow's store become a SettingsError that names `tracking.uri`.

    Raises:
        SettingsError: the store does not answer, or denies access.
    """
    try:
        yield
    except (MlflowException, SQLAlchemyError, ImportError, OSError) as error:
        named = mlflow.get_tracking_uri()
        raise SettingsError(f"tracking.uri: cannot use {named}: {error}") from None


def open_run(name: str, tags: Mapping[str, str]) -> str:
    """Create a run in the configured MLflow experiment and return its id.

    `adopt` logs into it.

    The tags `git_commit` and `git_dirty` describe the repository of the working directory.
    """
    commit, dirty = git_state(Path.cwd())
    own = {
        "git_commit": commit,
        "git_dirty": str(dirty).lower(),
        "mlflow.source.git.commit": commit,
        "mlflow.source.name": "compo-pipeline",
        "mlflow.source.type": "PROJECT",
    }
    run = mlflow.MlflowClient().create_run(
        experiment_id(), run_name=name, tags=resolve_tags({**tags, **own})
    )
    return str(run.info.run_id)


@contextmanager
def adopt(run_id: str, *, adopted_later: bool = False) -> Iterator[RunLog]:
    """Context manager in which an MLflow run continues.

    An error marks the run as failed.

    A finished run keeps its end, so that its duration is that of the training. If the store does
    not know the id, the run that replaces it has another one.

    Args:
        run_id: id of the run.
        adopted_later: whether a later step adopts and ends it too: a store that does not answer at
            the end is only logged.

    Raises:
        SettingsError: the store does not answer, or denies access.
    """
    client = mlflow.MlflowClient()
    with store_errors():
        run = find_or_restore(run_id).info
        client.update_run(run.run_id, "RUNNING")
    try:
        yield RunLog(run.run_id)
    except BaseException as error:
        # A store that does not answer must not hide the error.
        with suppress(MlflowException):
            client.set_terminated(run.run_id, "FAILED")
        if not isinstance(error, MlflowException):
            raise
        with store_errors():
            raise
    try:
        with store_errors():
            ended = run.end_time if run.status == "FINISHED" else None
            client.set_terminated(run.run_id, "FINISHED", ended)
    except SettingsError as problem:
        if not adopted_later:
            raise
        log.warning("the run is not ended yet: %s", problem)


def charts(run_id: str) -> list[str]:
    """Lines that say how to see a run's charts: of a store in a file a command, and the URL.

    Empty for an unknown run, and for a database that a server elsewhere shows.
    """
    uri = mlflow.get_tracking_uri()
    file = local_file(uri)
    page = _LOCAL_PAGE if file else masked(uri)
    if not page.startswith("http"):
        return []
    with store_errors():
        run = find(run_id)
    if run is None:
        return []
    shown = f"experiments/{run.info.experiment_id}/runs/{run_id}/model-metrics"
    url = f"{page.rstrip('/')}/#/{shown}?{_VIEW}"
    if file is None:
        return [url]
    store = shlex.quote(f"{_SQLITE}{os.path.relpath(file)}")
    return [f"mlflow ui --backend-store-uri {store}", url]


def child_run(run_id: str, name: str) -> str:
    """Id of the child of an MLflow run with a given tag `role`, created if missing.

    It has the parent's tags, the parent's name as a prefix, and the tag `role`.
    """
    client = mlflow.MlflowClient()
    parent = client.get_run(run_id)
    query = f"tags.{MLFLOW_PARENT_RUN_ID} = '{run_id}' AND tags.role = '{name}'"
    if found := client.search_runs([parent.info.experiment_id], query, max_results=1):
        return str(found[0].info.run_id)
    # `find_or_restore` must find the parent alone.
    excluded = (MLFLOW_RUN_NAME, RESTORED_FROM, ERROR)
    tags = {key: value for key, value in parent.data.tags.items() if key not in excluded}
    child = client.create_run(
        parent.info.experiment_id,
        run_name=f"{parent.info.run_name}-{name}",
        tags={**tags, MLFLOW_PARENT_RUN_ID: run_id, "role": name},
    )
    return str(child.info.run_id)


def log_figures(
    name: str, tags: Mapping[str, str], figures: Mapping[str, Any], page: Mapping[str, str | bytes]
) -> str:
    """Log metrics and their page as one MLflow run.

    Equal metrics are logged once.

    Args:
        name: name of the run.
        tags: tags of the run.
        figures: nested mappings, as `RunLog.metrics` gets them.
        page: files of the page.

    Returns:
        The run's id.

    Raises:
        SettingsError: the store does not answer, or denies access.
    """
    key = hash_of(name, figures)
    query = f"tags.figures = '{key}'"
    with store_errors():
        found = mlflow.MlflowClient().search_runs([experiment_id()], query, max_results=1)
        run_id = found[0].info.run_id if found else open_run(name, {**tags, "figures": key})
    with adopt(run_id) as record:
        record.metrics(figures)
        record.page(page, "page")
        return record.run_id


def mark_failed(run_id: str, error: Exception) -> None:
    """Mark an ended MLflow run as failed.

    A store that does not answer is only logged.
    """
    try:
        with store_errors():
            if find(run_id) is not None:
                client = mlflow.MlflowClient()
                client.set_tag(run_id, ERROR, masked(f"{type(error).__name__}: {error}")[:500])
                client.set_terminated(run_id, "FAILED")
    except SettingsError as problem:
        log.warning("the run is not marked as failed: %s", problem)


def find(run_id: str) -> Run | None:
    """The MLflow run with an id, or None if it is unknown or deleted."""
    try:
        run = mlflow.MlflowClient().get_run(run_id)
    except MlflowException as error:
        if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            return None
        raise
    return run if run.info.lifecycle_stage == "active" else None


def find_or_restore(run_id: str) -> Run:
    """The MLflow run with an id, or the one that replaces it in a store that does not know it."""
    if (known := find(run_id)) is not None:
        return known
    client = mlflow.MlflowClient()
    query = f"tags.{RESTORED_FROM} = '{run_id}'"
    if found := client.search_runs([experiment_id()], query, max_results=1):
        return found[0]
    log.warning("MLflow run %s is not in this store; a new run, restored_from it, is used", run_id)
    return client.get_run(open_run(f"restored-{run_id[:8]}", {RESTORED_FROM: run_id}))


@dataclass(frozen=True, slots=True)
class RunLog:
    """Logger of one MLflow run.

    Resumed runs and values that are too long raise no error.

    Passwords in tags and parameters are masked.
    """

    run_id: str

    def tags(self, tags: Mapping[str, str]) -> None:
        """Set tags of the MLflow run.

        An earlier value is replaced.
        """
        for name, value in tags.items():
            mlflow.MlflowClient().set_tag(self.run_id, name, masked(value))

    def params(self, nested: Mapping[str, Any]) -> None:
        """Log nested parameters to the MLflow run under dotted names.

        MLflow never changes a parameter: if a resumed run has one with another value, the first
        value stays and the new one becomes the tag `changed.<name>`. A value that is too long for
        MLflow is cut; its full text belongs in an artefact.
        """
        logged = mlflow.MlflowClient().get_run(self.run_id).data.params
        fresh, changed = [], {}
        for name, leaf in flatten(nested, "."):
            value = masked(str(leaf), name)[:_VALUE_LENGTH]
            if name not in logged:
                fresh.append(Param(name, value))
            elif logged[name] != value:
                changed[f"changed.{name}"[:_NAME_LENGTH]] = value
        mlflow.MlflowClient().log_batch(self.run_id, params=fresh)
        if changed:
            log.warning("the run keeps its first parameters; tagged: %s", ", ".join(changed))
            self.tags(changed)

    def metrics(self, nested: Mapping[str, Any], model_id: str | None = None) -> None:
        """Log the numbers in nested mappings as MLflow metrics, under names joined by slashes.

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
        """Log metrics by step: each row has `step` and the values at that step by name.

        A name with a group (`val/loss`) is unchanged; others get the prefix.
        """
        self._log_points(_curve_points(rows, prefix))

    def missing_curves(self, rows: Iterable[Mapping[str, float]], prefix: str) -> None:
        """Log the points of metric curves that the run lacks.

        It takes the same rows as `curves`.
        """
        points = list(_curve_points(rows, prefix))
        logged = {
            (name, metric.step)
            for name in {name for name, _, _ in points}
            for metric in mlflow.MlflowClient().get_metric_history(self.run_id, name)
        }
        self._log_points(point for point in points if (point[0], point[2]) not in logged)

    def artefact(self, path: Path, folder: str | None = None) -> None:
        """Log a file or a folder's files as artefacts of the MLflow run, below `folder`."""
        if path.is_dir():
            mlflow.MlflowClient().log_artifacts(self.run_id, str(path), folder or path.name)
        else:
            mlflow.MlflowClient().log_artifact(self.run_id, str(path), folder)

    def page(self, files: Mapping[str, str | bytes], folder: str) -> None:
        """Log the files of a page as artefacts of the MLflow run, below `folder`."""
        with TemporaryDirectory() as place:
            write_files(files, Path(place) / "page")
            self.artefact(Path(place) / "page", folder)

    def document(self, content: Mapping[str, Any], name: str) -> None:
        """Log a mapping as a JSON or YAML artefact, by the suffix of its name."""
        mlflow.MlflowClient().log_dict(self.run_id, dict(content), name)

    def dataset(self, name: str, digest: str, root: str | None, context: str) -> None:
        """Log a dataset that the run has read, as one of MLflow's dataset inputs.

        Args:
            name: name of the dataset.
            digest: hash of its content.
            root: folder of the dataset, if any.
            context: `training` or `evaluation`.
        """
        source = json.dumps({} if root is None else {"uri": root})
        tags = [InputTag(MLFLOW_DATASET_CONTEXT, context), InputTag("digest", digest)]
        dataset = Dataset(name, digest[:_DIGEST_LENGTH], "local", source)
        mlflow.MlflowClient().log_inputs(self.run_id, [DatasetInput(dataset, tags)])

    def _log_points(
        self, points: Iterable[tuple[str, float, int]], model_id: str | None = None
    ) -> None:
        """Log points of metrics (name, value, step) to the run in batches."""
        now = int(time.time() * 1000)
        metrics = (
            Metric(name, value, now, step, model_id=model_id) for name, value, step in points
        )
        while batch := list(islice(metrics, _BATCH_METRICS)):
            mlflow.MlflowClient().log_batch(self.run_id, metrics=batch)


class LiveCurves:
    """Logs training curves while training runs.

    Training goes on if the store does not answer.

    Who adds points stores them too, so none is lost: `RunLog.missing_curves` logs at the end what a
    run lacks.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix, self._next_try = prefix, 0.0

    def add(self, record: RunLog, rows: Iterable[Mapping[str, float]]) -> None:
        """Log curve points, unless the store did not answer shortly before."""
        started = time.monotonic()
        if started < self._next_try:
            return
        try:
            record.curves(rows, self._prefix)
        except MlflowException as error:
            ended = time.monotonic()
            self._next_try = ended + max(_PAUSE, _PATIENCE * (ended - started))
            log.warning(
                "tracking.uri: %s does not answer; training goes on, and the points that the run "
                "lacks are logged at the end (%s)",
                masked(mlflow.get_tracking_uri()),
                masked(str(error)).partition("\n")[0][:300],
            )


def _curve_points(
    rows: Iterable[Mapping[str, float]], prefix: str
) -> Iterator[tuple[str, float, int]]:
    """Yield metric name, value and step of each point in rows of curves."""
    for row in rows:
        for name, value in row.items():
            if name != "step":
                yield name if "/" in name else f"{prefix}/{name}", float(value), int(row["step"])


def flatten(nested: Mapping[str, Any], separator: str) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested mappings, under joined names that MLflow allows."""
    for key, value in nested.items():
        name = re.sub(r"[^\w\-./ ]", "_", str(key))
        if isinstance(value, Mapping) and value:
            for inner, leaf in flatten(value, separator):
                yield f"{name}{separator}{inner}"[:_NAME_LENGTH], leaf
        else:
            yield name[:_NAME_LENGTH], value
