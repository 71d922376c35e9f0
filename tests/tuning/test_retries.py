"""Retries of killed trials: what they copy, and how many there are."""

from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from compo_pipeline.tuning.retries import Failure, count, failure, reason, recover
from compo_pipeline.tuning.settings import StorageSettings, StudySettings
from compo_pipeline.tuning.space import Space
from compo_pipeline.tuning.study import StudyPlan, open_study


@pytest.fixture
def study(tmp_path: Path) -> optuna.Study:
    settings = StudySettings("s", storage=StorageSettings(None, 1, 3))
    return open_study(StudyPlan(settings, tmp_path, Space(()), {"x": 0.5}))


def lose(study: optuna.Study) -> None:
    """Take the next trial, measure a little, and be killed before the first sign of life."""
    trial = study.ask()
    trial.suggest_float("x", 0, 1)
    trial.set_constraint("drop", 1.0)
    trial.report(3.0, 1)
    trial.set_user_attr("score", 3.0)


@pytest.mark.filterwarnings("ignore:Heartbeat of storage")
def test_a_retry_keeps_parameters_and_nothing_measured(study: optuna.Study) -> None:
    lose(study)
    recover(study, retries=2)
    lost, retry = study.trials
    assert (lost.state, retry.state) == (TrialState.FAIL, TrialState.WAITING)
    assert failure(lost) is Failure.KILLED
    assert retry.params == lost.params == {"x": 0.5}
    assert retry.user_attrs == {"origin": "configured"}
    assert retry.system_attrs["fixed_params"] == {"x": 0.5}
    assert (retry.constraints, retry.intermediate_values) == ({}, {})


@pytest.mark.filterwarnings("ignore:Heartbeat of storage")
@pytest.mark.parametrize("retries", [0, 2])
def test_there_are_so_many_retries_and_no_more(study: optuna.Study, retries: int) -> None:
    for _ in range(retries + 1):
        now = count(study.trials)
        assert (now.begun, now.finished, now.waiting) == (1, 0, 1)
        lose(study)
        recover(study, retries)
        recover(study, retries)  # as often as one likes
    trials = study.trials
    assert len(trials) == retries + 1
    assert reason(trials[-1]) == "killed repeatedly"
    assert {reason(trial) for trial in trials[:-1]} <= {"its worker was killed"}
    now = count(trials)
    assert (now.begun, now.finished, now.waiting, now.running) == (1, 1, 0, 0)
