"""The record of a study in MLflow: a run of its own, and one within it for each trial."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from compo_pipeline.registry import tracking
from compo_pipeline.registry.tracking import RunLog

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

TRIAL = "trial"
STATE = "trial_state"
REASON = "trial_reason"
_PARENT = "mlflow.parentRunId"
_RUNS_A_REQUEST = 1000

Outcome = Literal["finished", "failed", "killed"]


@dataclass(frozen=True, slots=True)
class TuningRecord:
    """Keeps studies in an MLflow store, from any process: it holds all that leads there.

    Attributes:
        uri: of the store.
        experiment: id of the experiment.
        tags: of the study's run (method, variant, ...).
    """

    uri: str
    experiment: str
    tags: Mapping[str, str]

    @classmethod
    def here(cls, tags: Mapping[str, str]) -> TuningRecord:
        """In the store and experiment that `tracking.configure` has set in this process."""
        import mlflow

        return cls(mlflow.get_tracking_uri(), tracking.experiment_id(), dict(tags))

    def open_study(self, name: str, known: str | None) -> str:
        """Open the study's run in this process's store; a known one that is still there again."""
        if known is not None and tracking.find(known) is not None:
            self._client().update_run(known, status="RUNNING")
            return known
        return tracking.open_run(f"tuning-{name}", {**self.tags, "study": name})

    def open_trial(self, study: str, number: int) -> str:
        """Open the run of a trial within the study's."""
        tags = {_PARENT: study, TRIAL: str(number), "mlflow.source.name": "compo-pipeline"}
        client = self._client()
        run = client.create_run(self.experiment, run_name=f"trial {number}", tags=tags)
        return str(run.info.run_id)

    def point(self, trial: str, step: int, figures: Mapping[str, float]) -> None:
        """Add a point to the curves of a trial."""
        self._record(trial).curves([{"step": step, **figures}], TRIAL)

    def close_trial(
        self, run: str, trial: FrozenTrial, outcome: Outcome, reason: str | None
    ) -> None:
        """Log a finished trial and end its run."""
        record = self._record(run)
        record.params(trial.params)
        steps = sorted(trial.intermediate_values.items())
        record.curves([{"step": step, "reported": value} for step, value in steps], TRIAL)
        values = {f"value_{place}": value for place, value in enumerate(trial.values or ())}
        figures: dict[str, Any] = {"constraint": dict(trial.constraints), **values}
        if trial.datetime_start and trial.datetime_complete:
            taken = trial.datetime_complete - trial.datetime_start
            figures["seconds"] = taken.total_seconds()
        record.metrics({TRIAL: figures})
        record.tags({STATE: trial.state.name, **({} if reason is None else {REASON: reason})})
        self._client().set_terminated(run, outcome.upper())

    def trials(self, study: str) -> Mapping[int, tuple[str, bool]]:
        """The runs of a study's trials by the trial's number: id, and whether it has ended."""
        client, page = self._client(), None
        found: dict[int, tuple[str, bool]] = {}
        query = f"tags.{_PARENT} = '{study}'"
        while True:
            runs = client.search_runs(
                [self.experiment], query, max_results=_RUNS_A_REQUEST, page_token=page
            )
            for run in runs:
                closed = run.info.status != "RUNNING"
                found[int(run.data.tags[TRIAL])] = (run.info.run_id, closed)
            page = runs.token
            if not page:
                return found

    def close_study(self, run: str, outcome: Outcome, figures: Mapping[str, float]) -> None:
        """End the study's run."""
        self._record(run).metrics({"trials": dict(figures)})
        self._client().set_terminated(run, outcome.upper())

    def _record(self, run: str) -> RunLog:
        self._client()
        return RunLog(run)

    def _client(self) -> Any:
        import mlflow

        # A worker process begins without; in the others this changes nothing.
        mlflow.set_tracking_uri(self.uri)
        return mlflow.MlflowClient()
