"""Workers are killed at random: nothing is lost, nothing counts twice, nothing is left over."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from optuna.trial import FrozenTrial, TrialState

from compo_pipeline.tuning.settings import StudySettings
from compo_pipeline.tuning.study import EARLIER, load_study

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
