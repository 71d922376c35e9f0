"""Logs into runs of the MLflow store: tags, parameters, metrics, curves, artefacts, datasets."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mlflow
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param
from mlflow.exceptions import MlflowException
from mlflow.utils.mlflow_tags import MLFLOW_DATASET_CONTEXT

from compo_pipeline.core.files import write_files
from compo_pipeline.core.settings import masked

# MLflow's limits.
_NAME_LENGTH, _VALUE_LENGTH, _DIGEST_LENGTH = 250, 6000, 36
_BATCH_METRICS = 1000
# While a server is away a training asks again after this many seconds at least, and spends a tenth
# of its time on it at most.
_PAUSE, _PATIENCE = 300.0, 9.0

log = logging.getLogger(__name__)


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
