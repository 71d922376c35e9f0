"""The record of a run in MLflow: opened by training, adopted by the stages that follow.

A run's id travels in the catalog (`run.json`), so that one `kedro run`, several, or `dvc repro`
all leave one record. Where the store does not know the id (the outputs were pulled from elsewhere
or restored from a cache), a run tagged `restored_from` takes its place.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from compo_pipeline.configuration import SettingsError
from compo_pipeline.registry.git import git_state
from compo_pipeline.registry.record import Record

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run
    from mlflow.entities.model_registry import RegisteredModel

RESTORED_FROM = "restored_from"
ERROR = "error"
_LOCAL = "sqlite:///"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrackingSettings:
    """The YAML key `tracking`.

    Attributes:
        uri: MLflow server or database; null is a sqlite file in mlruns/ of the project.
        experiment: the experiment's name.
        system_metrics: log the machine's load too.
    """

    uri: str | None = None
    experiment: str = "compo"
    system_metrics: bool = False


def configure(settings: TrackingSettings, project_path: Path) -> None:
    """Point MLflow, in this process, at the store and the experiment, made where there is none."""
    import mlflow

    uri = connect(settings, project_path)
    mlflow.set_experiment(experiment_id=experiment_in(uri, settings.experiment, "tracking.uri"))


def connect(settings: TrackingSettings, project_path: Path) -> str:
    """Point MLflow, in this process, at the store alone; its URI."""
    import mlflow

    # Copying a folder next door needs no progress bar.
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    os.environ["MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING"] = str(settings.system_metrics).lower()
    uri = settings.uri
    if uri is None:
        # Absolute: MLflow takes a relative sqlite path from the working directory.
        folder = project_path.resolve() / "mlruns"
        folder.mkdir(exist_ok=True)
        uri = f"sqlite:///{folder / 'mlflow.db'}"
        # A new database is built in thirty migrations, each of which would have its line.
        logging.getLogger("alembic").setLevel(logging.WARNING)
        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)
    mlflow.set_tracking_uri(uri)
    mlflow.set_registry_uri(uri)
    return uri


def local_file(uri: str) -> Path | None:
    """The database file of a store, None for a server."""
    path = uri.partition("?")[0].removeprefix(_LOCAL)
    return Path(path) if uri.startswith(_LOCAL) and path else None


def experiment_in(uri: str, name: str, key: str) -> str:
    """Id of an experiment of a store, made where there is none.

    A database in a file keeps the artefacts beside it; where a server keeps them, it knows itself.

    Args:
        uri: of the store.
        name: of the experiment.
        key: of the setting that names the store.

    Raises:
        SettingsError: the store does not answer, or lets nobody in.
    """
    import mlflow

    with answering(uri, key):
        client = mlflow.MlflowClient(uri)
        known = client.get_experiment_by_name(name)
        return str(known.experiment_id) if known else _made_experiment(client, name, uri)


def registered_model(name: str) -> RegisteredModel:
    """A model of the store that MLflow was pointed at.

    Raises:
        SettingsError: the store has none of that name, does not answer, or lets nobody in.
    """
    import mlflow
    from mlflow.exceptions import MlflowException

    with answering(mlflow.get_registry_uri(), "tracking.uri"):
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
def answering(uri: str, key: str) -> Iterator[None]:
    """Take what goes wrong within for a store that cannot be used.

    Args:
        uri: of the store.
        key: of the setting that names it.

    Raises:
        SettingsError: the store does not answer, or lets nobody in.
    """
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, SQLAlchemyError, ImportError) as error:
        raise SettingsError(f"{key}: cannot use {masked(uri)}: {masked(str(error))}") from None


def _made_experiment(client: MlflowClient, name: str, uri: str) -> str:
    from mlflow.exceptions import MlflowException

    file = local_file(uri)
    artefacts = None if file is None else (file.resolve().parent / "artifacts").as_uri()
    try:
        return str(client.create_experiment(name, artefacts))
    except MlflowException as error:
        # Another process has made it meanwhile.
        known = client.get_experiment_by_name(name)
        if error.error_code != "RESOURCE_ALREADY_EXISTS" or known is None:
            raise
        return str(known.experiment_id)


def masked(text: str) -> str:
    """Without the passwords of its URLs."""
    text = re.sub(r"//\S*@", "//***@", text)
    return re.sub(r"([?&]\w*(?:password|token)=)[^&\s]*", r"\1***", text)


def open_run(name: str, tags: Mapping[str, str], project_path: Path | None = None) -> str:
    """Open a run in the configured experiment and return its id; `adopt` logs into it.

    Tags of git (`git_commit`, `git_dirty`) describe the project's folder, the working directory
    unless given.
    """
    import mlflow
    from mlflow.tracking.context.registry import resolve_tags

    _require_configured()
    state = git_state(project_path or Path.cwd())
    ours = {
        **tags,
        "git_commit": state.commit,
        "git_dirty": str(state.dirty).lower(),
        "mlflow.source.git.commit": state.commit,
        "mlflow.source.name": "compo-pipeline",
        "mlflow.source.type": "PROJECT",
    }
    client = mlflow.MlflowClient()
    run = client.create_run(experiment_id(), run_name=name, tags=resolve_tags(ours))
    return str(run.info.run_id)


@contextmanager
def adopt(run_id: str) -> Iterator[Record]:
    """Log into a run, whether or not it has ended; it fails where the block raises.

    Within the block it is MLflow's active run. The record's id is another one where the store
    does not know the given id.
    """
    import mlflow

    _require_configured()
    run = find(run_id) or _restored(run_id)
    configured = experiment_id()
    # MLflow refuses to reopen a run of another experiment than the active one.
    mlflow.set_experiment(experiment_id=run.info.experiment_id)
    try:
        with mlflow.start_run(run_id=run.info.run_id, nested=True):
            yield Record(run.info.run_id)
    finally:
        mlflow.set_experiment(experiment_id=configured)


def inner_run(run_id: str, name: str) -> str:
    """Id of the run of that name within another one, opened where there is none.

    It has the outer run's tags, the outer name as a prefix, and the tag `role`.
    """
    import mlflow
    from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID, MLFLOW_RUN_NAME

    client = mlflow.MlflowClient()
    outer = client.get_run(run_id)
    query = f"tags.{MLFLOW_PARENT_RUN_ID} = '{run_id}' AND tags.role = '{name}'"
    found = client.search_runs([outer.info.experiment_id], query, max_results=1)
    if found:
        return str(found[0].info.run_id)
    # Who restores the outer run must not find this one.
    left_out = (MLFLOW_RUN_NAME, RESTORED_FROM, ERROR)
    tags = {key: value for key, value in outer.data.tags.items() if key not in left_out}
    made = client.create_run(
        outer.info.experiment_id,
        run_name=f"{outer.info.run_name}-{name}",
        tags={**tags, MLFLOW_PARENT_RUN_ID: run_id, "role": name},
    )
    return str(made.info.run_id)


def mark_failed(run_id: str, error: Exception) -> None:
    """Note that a stage failed after its run had been closed."""
    import mlflow

    if find(run_id) is not None:
        client = mlflow.MlflowClient()
        client.set_tag(run_id, ERROR, f"{type(error).__name__}: {error}"[:500])
        client.set_terminated(run_id, "FAILED")


def _require_configured() -> None:
    from mlflow.tracking import is_tracking_uri_set

    if not is_tracking_uri_set():  # type: ignore[no-untyped-call]
        raise RuntimeError(
            "no MLflow store is set: call compo_pipeline.registry.tracking.configure first "
            "(under `kedro run` the project's hook does)"
        )


def experiment_id() -> str:
    """Id of the configured experiment."""
    from mlflow.tracking.fluent import _get_experiment_id

    return str(_get_experiment_id())


def find(run_id: str) -> Run | None:
    """The run in the store; None where it is unknown or was deleted."""
    import mlflow
    from mlflow.exceptions import MlflowException

    try:
        run = mlflow.MlflowClient().get_run(run_id)
    except MlflowException as error:
        if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            return None
        raise
    return run if run.info.lifecycle_stage == "active" else None


def _restored(run_id: str) -> Run:
    """The run that stands for an unknown one: an earlier stage may have opened it already."""
    import mlflow

    client = mlflow.MlflowClient()
    query = f"tags.{RESTORED_FROM} = '{run_id}'"
    found = client.search_runs([experiment_id()], query, max_results=1)
    if found:
        return found[0]
    log.warning("MLflow run %s is not in this store; a new run, restored_from it, is used", run_id)
    fresh = open_run(f"restored-{run_id[:8]}", {RESTORED_FROM: run_id})
    return client.get_run(fresh)
