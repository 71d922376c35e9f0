"""A study: its database, what it refuses, the loop that runs its trials, and workers' kills."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState

from compo_pipeline.core.settings import SettingsError, parse
from compo_pipeline.tuning.settings import StudySettings
from compo_pipeline.tuning.study import EARLIER, REASON, StudyPlan, load_study, open_study, work


def plan(folder: Path, trials: int = 4, storage: str | None = None) -> StudyPlan:
    settings = StudySettings("curve", trials, storage=storage)
    return StudyPlan(settings, folder, {"x": 0.5}, {"method": "clic", "training": {"epochs": 2}})


def parabola(trial: optuna.Trial) -> float:
    return -(float(trial.suggest_float("x", -1, 1)) ** 2)


def states(study: optuna.Study) -> list[str]:
    return [trial.state.name for trial in study.trials]


def test_configured_values_come_first_and_no_trial_is_too_many(tmp_path: Path) -> None:
    study = work(plan(tmp_path), parabola)
    assert states(study) == ["COMPLETE"] * 4
    assert study.trials[0].params == {"x": 0.5}
    done = study.trials
    assert work(plan(tmp_path), parabola).trials == done
    more = work(plan(tmp_path, 6), parabola).trials
    assert len(more) == 6 and more[:4] == done


def test_trials_that_fail_or_are_pruned_count(tmp_path: Path) -> None:
    def objective(trial: optuna.Trial) -> float:
        value = parabola(trial)
        if trial.number == 1:
            raise MemoryError("no memory")
        if trial.number == 2:
            raise optuna.TrialPruned
        return value

    study = work(plan(tmp_path), objective)
    assert states(study) == ["COMPLETE", "FAIL", "PRUNED", "COMPLETE"]
    assert study.trials[1].user_attrs[REASON] == "MemoryError: no memory"


def test_an_error_with_the_configured_values_ends_the_study(tmp_path: Path) -> None:
    def mistaken(trial: optuna.Trial) -> float:
        parabola(trial)
        raise SettingsError("training.epochs: expected at least 1, got 0")

    with pytest.raises(SettingsError, match=r"training\.epochs"):
        work(plan(tmp_path), mistaken)
    corrected = work(plan(tmp_path), parabola)
    assert states(corrected) == ["FAIL", *["COMPLETE"] * 4]
    assert corrected.trials[1].params == {"x": 0.5}


def test_an_interrupted_trial_is_run_again_and_the_study_goes_on_as_if_it_were_not(
    tmp_path: Path,
) -> None:
    def interrupted(trial: optuna.Trial) -> float:
        value = parabola(trial)
        if trial.number == 2:
            raise KeyboardInterrupt
        return value

    with pytest.raises(KeyboardInterrupt):
        work(plan(tmp_path, 5), interrupted)
    study = work(plan(tmp_path, 5), parabola)
    assert states(study) == ["COMPLETE", "COMPLETE", "FAIL", *["COMPLETE"] * 3]
    assert study.trials[3].params == study.trials[2].params
    whole = work(plan(tmp_path / "whole", 5), parabola)
    assert [t.params for t in whole.trials[:3]] == [t.params for t in study.trials[:3]]


def test_a_trial_whose_worker_was_killed_as_it_began_is_not_left_over(tmp_path: Path) -> None:
    study = open_study(plan(tmp_path, 2))
    study._storage.set_trial_state_values(study.trials[0]._trial_id, TrialState.RUNNING)
    study = work(plan(tmp_path, 2), parabola)
    assert states(study) == ["FAIL", "COMPLETE", "COMPLETE"]
    assert study.trials[1].params == {"x": 0.5}


def test_a_study_with_another_fingerprint_is_refused(tmp_path: Path) -> None:
    open_study(plan(tmp_path))
    other = replace(plan(tmp_path), fingerprint={"method": "clip", "training": {"epochs": 3}})
    with pytest.raises(
        SettingsError, match=r"name: a study 'curve' .* in method, training\.epochs;"
    ):
        open_study(other)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql://me:secret@localhost:1/db", r"cannot use postgresql\+psycopg://\*\*\*@"),
        ("sqlite:////proc/nowhere/study.db", r"cannot use sqlite:////proc/nowhere/study.db"),
    ],
)
def test_a_database_that_cannot_be_used_is_named_without_its_password(
    tmp_path: Path, url: str, message: str
) -> None:
    with pytest.raises(SettingsError, match=rf"tuning\.study\.storage: {message}") as caught:
        open_study(plan(tmp_path, storage=url))
    assert "secret" not in caught.value.message


@pytest.mark.parametrize("url", ["study.db", "mysql://me:secret@host/db"])
def test_other_urls_are_refused_without_their_password(url: str) -> None:
    with pytest.raises(SettingsError, match=r"tuning\.study\.storage: ") as caught:
        parse(StudySettings, {"name": "s", "storage": url}, "tuning.study")
    assert "secret" not in caught.value.message


def test_a_postgresql_study_is_joined(tmp_path: Path, postgres: str) -> None:
    work(plan(tmp_path, 2, postgres), parabola)
    assert states(work(plan(tmp_path, 3, postgres), parabola)) == ["COMPLETE"] * 3


SCRIPT = Path(__file__).with_name("parabola_study.py")


def start(folder: Path, trials: int, url: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, str(SCRIPT), str(folder), str(trials), url])


def begun(folder: Path) -> list[tuple[int, int]]:
    """Number and process of each evaluation."""
    path = folder / "log"
    # The last line may be in the middle of being written.
    whole = path.read_text(encoding="utf-8").rpartition("\n")[0] if path.exists() else ""
    return [tuple(json.loads(line)) for line in whole.splitlines()]


def chaos(folder: Path, url: str, trials: int, workers: int, kills: int) -> list[FrozenTrial]:
    """Kill workers within evaluations, start others in their place, and wait for the study."""
    draw = random.Random(0)
    processes = [start(folder, trials, url) for _ in range(workers)]
    while kills:
        time.sleep(draw.uniform(0.05, 0.4))
        evaluating = {pid for _, pid in begun(folder)}
        alive = [one for one in processes if one.poll() is None and one.pid in evaluating]
        if alive:
            os.kill((victim := draw.choice(alive)).pid, signal.SIGKILL)
            processes[processes.index(victim)] = start(folder, trials, url)
            kills -= 1
    assert [process.wait(timeout=120) for process in processes] == [0] * workers
    return load_study(StudySettings("parabola", storage=url or None), folder).trials


def check(trials: list[FrozenTrial], folder: Path, expected: int, kills: int) -> None:
    states = Counter(trial.state for trial in trials)
    assert states[TrialState.COMPLETE] == expected
    assert states.keys() <= {TrialState.COMPLETE, TrialState.FAIL}
    assert 1 <= states[TrialState.FAIL] <= kills
    assert set(Counter(number for number, _ in begun(folder)).values()) == {1}
    lost = {trial.number: trial for trial in trials if trial.state == TrialState.FAIL}
    retried = [number for one in trials for number in one.user_attrs.get(EARLIER, [])[-1:]]
    assert sorted(retried) == sorted(lost)
    for trial in trials:
        for number in trial.user_attrs.get(EARLIER, ()):
            assert trial.params == lost[number].params
    assert 0.5 in [trial.params["x"] for trial in trials if trial.state == TrialState.COMPLETE]


def test_the_same_command_continues_a_study_whose_worker_was_killed(tmp_path: Path) -> None:
    check(chaos(tmp_path, "", trials=3, workers=1, kills=1), tmp_path, 3, 1)


@pytest.mark.slow
def test_kills_among_several_workers_on_postgresql(tmp_path: Path, postgres: str) -> None:
    check(chaos(tmp_path, postgres, trials=20, workers=3, kills=8), tmp_path, 20, 8)
