"""MLflow record of a study: a run with a child run per trial, from any process."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mlflow
import optuna
import pytest
from mlflow.exceptions import MlflowException
from optuna.distributions import FloatDistribution
from optuna.trial import FrozenTrial, TrialState

from compo_pipeline.configuration.settings import SettingsError
from compo_pipeline.tracking import runs as tracking
from compo_pipeline.tracking.settings import TrackingSettings
from compo_pipeline.tuning.record import TuningRecord


@pytest.fixture
def record(mlflow_project: Path) -> TuningRecord:
    tracking.configure(TrackingSettings(experiment="tuning"), mlflow_project)
    return TuningRecord.here({"method": "clic"})


def trial(state: TrialState, values: list[float] | None) -> FrozenTrial:
    return optuna.create_trial(
        state=state,
        values=values,
        params={"training.optimizer.lr": 1e-3},
        distributions={"training.optimizer.lr": FloatDistribution(1e-5, 1e-1)},
        intermediate_values={100: 40.0, 200: 55.0},
        constraints={"retrieval": -0.5},
    )


def test_a_trial_in_its_study(record: TuningRecord) -> None:
    client = mlflow.MlflowClient()
    study = record.open_study("clic-scenes", None)
    run = record.open_trial(study, 3)
    record.point(run, 100, {"loss": 0.5})
    assert record.trials(study) == {3: (run, False)}
    record.close_trial(run, trial(TrialState.COMPLETE, [57.0]), "finished", None)
    assert record.trials(study) == {3: (run, True)}
    record.close_study(study, "finished", {"complete": 1.0})

    logged = client.get_run(run)
    assert logged.info.status == "FINISHED"
    assert logged.data.tags["mlflow.parentRunId"] == study
    assert logged.data.tags["trial_state"] == "COMPLETE"
    assert "trial_reason" not in logged.data.tags
    assert logged.data.params == {"training.optimizer.lr": "0.001"}
    assert logged.data.metrics["trial/value_0"] == 57.0
    assert logged.data.metrics["trial/constraint/retrieval"] == -0.5
    curve = client.get_metric_history(run, "trial/reported")
    assert [(point.step, point.value) for point in curve] == [(100, 40.0), (200, 55.0)]
    assert client.get_metric_history(run, "trial/loss")[0].step == 100
    parent = client.get_run(study)
    assert parent.info.status == "FINISHED"
    assert parent.data.tags["method"] == "clic"
    assert parent.data.metrics == {"trials/complete": 1.0}


def test_a_store_that_goes_away_gets_every_point_when_a_trial_is_closed(
    record: TuningRecord, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = record.open_trial(record.open_study("away", None), 0)
    assert record.point(run, 1, {"loss": 1.0})

    def away(*given: object, **options: object) -> None:
        raise MlflowException("API request failed\nTraceback")

    ended = trial(TrialState.COMPLETE, [57.0])
    with monkeypatch.context() as patched:
        patched.setattr(mlflow.MlflowClient, "log_batch", away)
        for step in (2, 3):
            assert not record.point(run, step, {"loss": 0.5})
        with pytest.raises(SettingsError, match="^tracking.uri: "):
            record.close_trial(run, ended, "finished", None)
    assert len(caplog.messages) == 1 and "\n" not in caplog.messages[0]
    ended.set_user_attr("unlogged", [{"step": step, "loss": 0.5} for step in (2, 3)])
    for _ in range(2):  # the first may have been cut off
        record.close_trial(run, ended, "finished", None)
    curves = [
        [point.step for point in mlflow.MlflowClient().get_metric_history(run, f"trial/{name}")]
        for name in ("loss", "reported")
    ]
    assert curves == [[1, 2, 3], [100, 200]]


def test_a_failed_trial_says_why(record: TuningRecord) -> None:
    run = record.open_trial(record.open_study("failing", None), 0)
    record.close_trial(run, trial(TrialState.FAIL, None), "killed", "killed repeatedly")
    logged = mlflow.MlflowClient().get_run(run)
    assert (logged.info.status, logged.data.tags["trial_reason"]) == ("KILLED", "killed repeatedly")
    assert "trial/value_0" not in logged.data.metrics


def test_a_known_study_is_opened_again_and_a_lost_one_anew(record: TuningRecord) -> None:
    client = mlflow.MlflowClient()
    study = record.open_study("again", None)
    record.close_study(study, "killed", {})
    assert client.get_run(study).info.status == "KILLED"
    assert record.open_study("again", study) == study
    assert client.get_run(study).info.status == "RUNNING"
    assert record.open_study("again", "0" * 32) != study


def test_many_write_at_once(record: TuningRecord) -> None:
    study = record.open_study("many", None)

    def one(number: int) -> None:
        run = record.open_trial(study, number)
        record.close_trial(run, trial(TrialState.COMPLETE, [float(number)]), "finished", None)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, range(12)))
    logged = record.trials(study)
    assert sorted(logged) == list(range(12))
    assert all(closed for _, closed in logged.values())
