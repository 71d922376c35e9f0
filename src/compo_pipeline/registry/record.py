"""Writing parameters, metrics, curves and files of a run into MLflow, within its limits."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# MLflow's limits, per name, value and request.
NAME_LENGTH = 250
VALUE_LENGTH = 6000
PARAMS_A_REQUEST = 100
METRICS_A_REQUEST = 1000

log = logging.getLogger(__name__)


def flatten(nested: Mapping[str, Any], separator: str) -> Iterator[tuple[str, Any]]:
    """Leaves of nested mappings under joined names, the names in MLflow's alphabet."""
    for key, value in nested.items():
        name = re.sub(r"[^\w\-./ ]", "_", str(key))
        if isinstance(value, Mapping) and value:
            for inner, leaf in flatten(value, separator):
                yield f"{name}{separator}{inner}"[:NAME_LENGTH], leaf
        else:
            yield name[:NAME_LENGTH], value


@dataclass(frozen=True, slots=True)
class Record:
    """One run of the MLflow store."""

    run_id: str

    def tags(self, tags: Mapping[str, str]) -> None:
        """Set tags; an earlier value is replaced."""
        for name, value in tags.items():
            self._client().set_tag(self.run_id, name, value)

    def tag(self, name: str) -> str | None:
        """A tag's value, None where the run has no such tag."""
        value = self._client().get_run(self.run_id).data.tags.get(name)
        return None if value is None else str(value)

    def params(self, nested: Mapping[str, Any]) -> None:
        """Log parameters under dotted names.

        MLflow never changes a parameter: one that a resumed run has with another value keeps the
        first, and the new value becomes the tag `changed.<name>`. A value too long for MLflow is
        cut; the whole of it belongs in an artefact.
        """
        from mlflow.entities import Param

        logged = self._client().get_run(self.run_id).data.params
        fresh, changed = [], {}
        for name, leaf in flatten(nested, "."):
            value = str(leaf)[:VALUE_LENGTH]
            if name not in logged:
                fresh.append(Param(name, value))
            elif logged[name] != value:
                changed[f"changed.{name}"[:NAME_LENGTH]] = value
        for start in range(0, len(fresh), PARAMS_A_REQUEST):
            self._client().log_batch(self.run_id, params=fresh[start : start + PARAMS_A_REQUEST])
        if changed:
            log.warning("the run keeps its first parameters; tagged: %s", ", ".join(changed))
            self.tags(changed)

    def metrics(self, nested: Mapping[str, Any], model_id: str | None = None) -> None:
        """Log the numbers of nested mappings under names joined by slashes; the rest is left out.

        What is not a number (lists, texts, nulls) belongs in an artefact. With a logged model's
        id they are shown with that model too.
        """
        points = (
            (name, float(value), 0)
            for name, value in flatten(nested, "/")
            if isinstance(value, int | float)
        )
        self._log(points, model_id)

    def curves(self, rows: Iterable[Mapping[str, float]], prefix: str) -> None:
        """Log curves: every row holds `step` and, under other names, its numbers.

        A name that is in a group already (`val/loss`) keeps it; the others get the prefix.
        """
        self._log(
            (name if "/" in name else f"{prefix}/{name}", float(value), int(row["step"]))
            for row in rows
            for name, value in row.items()
            if name != "step"
        )

    def artefact(self, path: Path, folder: str | None = None) -> None:
        """Keep a copy of a file or folder with the run."""
        if path.is_dir():
            self._client().log_artifacts(self.run_id, str(path), folder or path.name)
        else:
            self._client().log_artifact(self.run_id, str(path), folder)

    def document(self, content: Mapping[str, Any], name: str) -> None:
        """Keep a mapping with the run, as the .json or .yaml file that its name says."""
        self._client().log_dict(self.run_id, dict(content), name)

    def _log(self, points: Iterable[tuple[str, float, int]], model_id: str | None = None) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [
            Metric(name, value, now, step, model_id=model_id) for name, value, step in points
        ]
        for start in range(0, len(metrics), METRICS_A_REQUEST):
            batch = metrics[start : start + METRICS_A_REQUEST]
            self._client().log_batch(self.run_id, metrics=batch)

    def _client(self) -> Any:
        import mlflow

        return mlflow.MlflowClient()
