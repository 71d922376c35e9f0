"""MLflow record of a study: a run for the study and a child run for each trial."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import mlflow
from mlflow import MlflowClient
from optuna.trial import FrozenTrial

from compo_pipeline.tracking import runs as tracking
from compo_pipeline.tracking.run_log import LiveCurves, RunLog

TRIAL = "trial"
STATE = "trial_state"
REASON = "trial_reason"
# Attribute of a trial: points of its curves that the store did not take; logged at its end.
UNLOGGED = "unlogged"
_PARENT = "mlflow.parentRunId"

# How a study or a trial has ended: its run's status in MLflow.
Outcome = Literal["finished", "failed", "killed"]


@dataclass(frozen=True, slots=True)
class TuningRecord:
    """Logs Optuna studies and their trials into MLflow; it can be pickled to other processes.

    Every method but `point` raises SettingsError where the store does not answer.

    Attributes:
        uri: of the store.
        experiment: id of the experiment.
        tags: of the study's run (method, variant, ...).
    """

    uri: str
    experiment: str
    tags: Mapping[str, str]
    _live: LiveCurves = field(init=False, default_factory=lambda: LiveCurves(TRIAL))

    @classmethod
    def here(cls, tags: Mapping[str, str]) -> TuningRecord:
        """A record in the MLflow store and experiment that this process has configured."""
        return cls(mlflow.get_tracking_uri(), tracking.experiment_id(), dict(tags))

    def open_study(self, name: str, known: str | None) -> str:
        """Start a study's MLflow run, or resume a known run if it exists; returns the run's id."""
        with self._store() as client:
            if known is not None and tracking.find(known) is not None:
                client.update_run(known, status="RUNNING")
                return known
            return tracking.open_run(f"tuning-{name}", {**self.tags, "study": name})

    def open_trial(self, study: str, number: int) -> str:
        """Start a trial's MLflow run below the study's run; returns its id."""
        tags = {_PARENT: study, TRIAL: str(number), "mlflow.source.name": "compo-pipeline"}
        with self._store() as client:
            run = client.create_run(self.experiment, run_name=f"trial {number}", tags=tags)
        return str(run.info.run_id)

    def point(self, trial: str, step: int, figures: Mapping[str, float]) -> bool:
        """Log one point of a trial's training curves to MLflow; returns whether it is logged."""
        mlflow.set_tracking_uri(self.uri)
        return self._live.add(RunLog(trial), [{"step": step, **figures}])

    def close_trial(
        self, run: str, trial: FrozenTrial, outcome: Outcome, reason: str | None
    ) -> None:
        """Log a finished trial with missing points of its curves, and end its MLflow run."""
        reported = sorted(trial.intermediate_values.items())
        points = [{"step": step, "reported": value} for step, value in reported]
        values = {f"value_{index}": value for index, value in enumerate(trial.values or ())}
        figures: dict[str, Any] = {"constraint": dict(trial.constraints), **values}
        if trial.duration:
            figures["seconds"] = trial.duration.total_seconds()
        log = RunLog(run)
        with self._store() as client:
            log.params(trial.params)
            log.missing_curves([*trial.user_attrs.get(UNLOGGED, ()), *points], TRIAL)
            log.metrics({TRIAL: figures})
            log.tags({STATE: trial.state.name, **({} if reason is None else {REASON: reason})})
            client.set_terminated(run, outcome.upper())

    def trials(self, study: str) -> Mapping[int, tuple[str, bool]]:
        """MLflow run id of each trial by number, and whether the run has ended."""
        query = f"tags.{_PARENT} = '{study}'"
        with self._store():
            runs = mlflow.search_runs([self.experiment], query, output_format="list")
        return {
            int(run.data.tags[TRIAL]): (run.info.run_id, run.info.status != "RUNNING")
            for run in runs
        }

    def close_study(self, run: str, outcome: Outcome, figures: Mapping[str, float]) -> None:
        """Log the numbers of trials by state, and end the study's MLflow run."""
        with self._store() as client:
            RunLog(run).metrics({"trials": dict(figures)})
            client.set_terminated(run, outcome.upper())

    @contextmanager
    def _store(self) -> Iterator[MlflowClient]:
        """Yield an MLflow client of the store; its errors name the YAML key `tracking.uri`."""
        # A worker process starts without it.
        mlflow.set_tracking_uri(self.uri)
        with tracking.store_errors(self.uri, "tracking.uri"):
            yield mlflow.MlflowClient()
