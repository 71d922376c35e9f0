"""A worker in this process: what it runs, what fails, when it stops."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.exceptions import StorageInternalError
from optuna.trial import TrialState

from compo_pipeline.configuration.settings import SettingsError
from compo_pipeline.tuning.retries import reason, recover
from compo_pipeline.tuning.settings import StorageSettings, StudySettings
from compo_pipeline.tuning.space import Space
from compo_pipeline.tuning.study import Storage, StudyPlan, open_study
from compo_pipeline.tuning.workers import run


def plan(folder: Path, trials: int, **options: Any) -> StudyPlan:
    settings = StudySettings("curve", trials, storage=StorageSettings(None, 1, 3), **options)
    return StudyPlan(settings, folder, Space(()), {"x": 0.5}, ("minimize",))


def parabola(trial: optuna.Trial) -> float:
    return float(trial.suggest_float("x", -1, 1)) ** 2


def states(study: optuna.Study) -> list[str]:
    return [trial.state.name for trial in study.trials]


def reasons(study: optuna.Study) -> list[str | None]:
    return [reason(trial) for trial in study.trials]


def test_configured_values_come_first_and_no_trial_is_too_many(
    tmp_path: Path, recorder: Any
) -> None:
    seen: list[int] = []
    study = run(
        plan(tmp_path, 4),
        parabola,
        recorder,
        on_progress=lambda study: seen.append(len(study.trials)),
    )
    assert states(study) == ["COMPLETE"] * 4
    assert study.trials[0].params == {"x": 0.5}
    assert study.trials[0].user_attrs["origin"] == "configured"
    assert seen == [1, 2, 3, 4]

    done = study.trials
    assert run(plan(tmp_path, 4), parabola, recorder).trials == done
    more = run(plan(tmp_path, 6), parabola, recorder).trials
    assert len(more) == 6
    assert more[:4] == done


def test_failing_trials_say_why_and_the_study_goes_on(tmp_path: Path, recorder: Any) -> None:
    import torch

    wrong: dict[int, Any] = {
        0: ValueError("no such\nlayer"),
        1: MemoryError(),
        2: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        3: RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 4 GB"),
        4: float("nan"),
        5: [1.0, 2.0],
        6: SettingsError("clic.objective.k: expected 1..5, got 9"),
        7: RuntimeError(""),
    }

    def objective(trial: optuna.Trial) -> Any:
        value = wrong.get(trial.number, 1.0)
        if isinstance(value, Exception):
            raise value
        return value

    study = run(plan(tmp_path, 9), objective, recorder)
    assert states(study) == ["FAIL"] * 8 + ["COMPLETE"]
    assert reasons(study) == [
        "ValueError: no such layer",
        "out of memory",
        "out of memory: CUDA out of memory. Tried to allocate 2 GiB",
        "out of memory: DefaultCPUAllocator: can't allocate memory: you tried 4 GB",
        "ValueError: expected 1 finite value(s) of the objective, got nan",
        "ValueError: expected 1 finite value(s) of the objective, got [1.0, 2.0]",
        "configuration: clic.objective.k: expected 1..5, got 9",
        "RuntimeError",
        None,
    ]


def test_nothing_but_configuration_errors_stops_the_study(tmp_path: Path, recorder: Any) -> None:
    def mistaken(trial: optuna.Trial) -> float:
        trial.suggest_float("x", -1, 1)
        raise SettingsError("training.epochs: expected at least 1, got 0")

    with pytest.raises(SettingsError, match=r"'curve' was stopped: configuration: training\.ep"):
        run(plan(tmp_path, 10), mistaken, recorder)
    assert states(open_study(plan(tmp_path, 10))) == ["FAIL"] * 3

    corrected = run(plan(tmp_path, 10), parabola, recorder)
    first = [t.system_attrs.get("failed_trial", t.number) for t in corrected.trials]
    assert states(corrected) == ["FAIL"] * 3 + ["COMPLETE"] * 10
    assert sorted(set(first)) == [0, 1, 2, *range(6, 13)]
    assert [t.params for t in corrected.trials[3:6]] == [t.params for t in corrected.trials[:3]]


def test_some_configuration_errors_do_not(tmp_path: Path, recorder: Any) -> None:
    def sometimes(trial: optuna.Trial) -> float:
        if trial.number != 1:
            raise SettingsError("training.epochs: expected at least 1, got 0")
        return 1.0

    assert len(run(plan(tmp_path, 6), sometimes, recorder).trials) == 6


def test_an_interrupted_trial_is_run_again_with_its_parameters(
    tmp_path: Path, recorder: Any
) -> None:
    def interrupted(trial: optuna.Trial) -> float:
        value = parabola(trial)
        if trial.number == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return value

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        run(plan(tmp_path, 5), interrupted, recorder)
    assert signal.getsignal(signal.SIGTERM) is before
    study = run(plan(tmp_path, 5), parabola, recorder)
    assert states(study) == ["COMPLETE", "COMPLETE", "FAIL", *["COMPLETE"] * 3]
    assert reasons(study)[2] == "interrupted"
    assert study.trials[3].params == study.trials[2].params

    whole = run(plan(tmp_path / "whole", 5), parabola, type(recorder)())
    assert [t.params for t in whole.trials[:3]] == [t.params for t in study.trials[:3]]


def test_a_trial_that_was_never_begun_is_not_left_over(tmp_path: Path, recorder: Any) -> None:
    opened = open_study(plan(tmp_path, 2))
    # As a worker leaves it that is killed between taking a trial and its first sign of life.
    waiting = opened.trials[0]._trial_id
    opened._storage.set_trial_state_values(waiting, TrialState.RUNNING)
    study = run(plan(tmp_path, 2), parabola, recorder)
    assert states(study) == ["FAIL", "COMPLETE", "COMPLETE"]
    assert reasons(study)[0] == "its worker was killed"
    assert [trial.params.get("x") for trial in study.trials][1] == 0.5


def test_a_trial_taken_for_lost_does_not_count_twice(
    tmp_path: Path, recorder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = Storage._get_stale_trial_ids
    late: list[int] = []

    def sleeper(trial: optuna.Trial) -> float:
        value = parabola(trial)
        if trial.number == 0:
            # Meanwhile another worker recovers the study.
            late.append(trial._trial_id)
            other = open_study(plan(tmp_path, 2))
            with plan(tmp_path, 2).lock():
                recover(other, retries=2)
            late.clear()
        return value

    monkeypatch.setattr(
        Storage, "_get_stale_trial_ids", lambda self, study: late or stale(self, study)
    )
    study = run(plan(tmp_path, 2), sleeper, recorder)
    assert states(study) == ["FAIL", "COMPLETE", "COMPLETE"]
    assert study.trials[1].params == study.trials[0].params
    assert study.trials[1].system_attrs["retry_history"] == [0]


def test_heartbeats_outlast_a_database_that_is_away_for_a_moment(
    tmp_path: Path,
    recorder: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    beat = optuna.storages.RDBStorage.record_heartbeat
    beats: list[int] = []

    def third_fails(self: Any, trial_id: int) -> None:
        beats.append(trial_id)
        if len(beats) == 3:
            raise StorageInternalError("away")
        beat(self, trial_id)

    def slow(trial: optuna.Trial) -> float:
        until = time.monotonic() + 30
        while len(beats) < 5 and time.monotonic() < until:
            time.sleep(0.1)
        return parabola(trial)

    monkeypatch.setattr(optuna.storages.RDBStorage, "record_heartbeat", third_fails)
    assert states(run(plan(tmp_path, 1), slow, recorder)) == ["COMPLETE"]
    assert len(beats) >= 5
    assert caplog.messages.count("a heartbeat could not be written: away") == 1


def test_the_record_is_complete_in_the_end(
    tmp_path: Path, recorder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*given: object) -> str:
        raise SettingsError("tracking.uri: no store")

    def objective(trial: optuna.Trial) -> float:
        assert trial.number not in recorder.closed
        if trial.number in (1, 2):  # neither closed now, nor the next one opened
            patched.setattr(recorder, "close_trial", broken)
            patched.setattr(recorder, "open_trial", broken)
        if trial.number == 3:
            patched.undo()
            raise ValueError("odd")
        if trial.number == 4:
            raise optuna.TrialPruned
        return parabola(trial)

    with monkeypatch.context() as patched:
        run(plan(tmp_path, 5), objective, recorder)
    assert recorder.closed == {
        0: ("finished", None),
        1: ("finished", None),
        2: ("finished", None),
        3: ("failed", "ValueError: odd"),
        4: ("finished", None),
    }
    assert recorder.ended == [("finished", {"complete": 3.0, "pruned": 1.0, "fail": 1.0})]
