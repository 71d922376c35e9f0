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
from typing import Any, NamedTuple

import optuna
import psutil
import pytest
from optuna.trial import FrozenTrial, TrialState

from compo_pipeline.tuning.retries import reason

SCRIPT = Path(__file__).with_name("parabola_study.py")


class Line(NamedTuple):
    what: str
    number: int
    pid: int
    x: float


def start(folder: Path, **options: Any) -> subprocess.Popen[bytes]:
    folder.mkdir(exist_ok=True)
    with (folder / "errors").open("ab") as errors:
        return subprocess.Popen(
            [sys.executable, str(SCRIPT), str(folder), json.dumps(options)], stderr=errors
        )


def lines(folder: Path) -> list[Line]:
    path = folder / "log"
    if not path.exists():
        return []
    # The last line may be in the middle of being written.
    whole = path.read_text(encoding="utf-8").rpartition("\n")[0]
    return [Line(*json.loads(text)) for text in whole.splitlines()]


def wait_for(folder: Path, process: subprocess.Popen[bytes], count: int) -> None:
    """Wait until so many evaluations have begun."""
    while sum(line.what == "begin" for line in lines(folder)) < count:
        assert process.poll() is None, (folder / "errors").read_text()
        time.sleep(0.02)


def kill_at_random(
    folder: Path, process: subprocess.Popen[bytes], kills: int, seed: int
) -> list[int]:
    """SIGKILL workers of a running study at random moments; the pids that were killed.

    Only those that have begun an evaluation: one that is still importing would teach nothing.
    """
    draw = random.Random(seed)
    killed: list[int] = []
    while len(killed) < kills:
        assert process.poll() is None, f"the study ended after {len(killed)} kills"
        time.sleep(draw.uniform(0.05, 0.4))
        known = {line.pid for line in lines(folder)} - set(killed)
        alive = sorted(pid for pid in known if psutil.pid_exists(pid))
        if alive:
            victim = draw.choice(alive)
            os.kill(victim, signal.SIGKILL)
            killed.append(victim)
    return killed


def check(trials: list[FrozenTrial], log: list[Line], expected: int, kills: int) -> Counter[str]:
    """Nothing lost, nothing twice, nothing left over; how the trials ended."""
    begun = Counter(line.number for line in log if line.what == "begin")
    ended = {line.number: line.x for line in log if line.what == "end"}
    assert set(begun.values()) <= {1}, "a trial was evaluated twice"
    chains: dict[int, list[FrozenTrial]] = {}
    for trial in trials:
        first = trial.system_attrs.get("failed_trial", trial.number)
        chains.setdefault(first, []).append(trial)
    assert len(chains) == expected
    for chain in chains.values():
        *lost, last = chain
        for trial in lost:
            assert trial.state == TrialState.FAIL
            assert reason(trial) == "its worker was killed"
            if trial.params:
                assert last.params == trial.params, "a retry has other parameters"
        assert len(lost) <= 2
        if last.state == TrialState.COMPLETE:
            assert ended[last.number] == last.params["x"]
            assert last.value == last.params["x"] * last.params["x"]
        else:
            assert last.state == TrialState.FAIL
            assert reason(last) == "killed repeatedly"
            assert len(lost) == 2
    failed = [trial for trial in trials if trial.state == TrialState.FAIL]
    assert len(failed) <= kills, "more trials were lost than workers killed"
    retried = sum(len(chain) > 1 for chain in chains.values())
    return Counter(
        complete=sum(trial.state == TrialState.COMPLETE for trial in trials),
        failed=len(failed),
        retried=retried,
        evaluated=len(begun),
    )


def trials_of(url: str) -> list[FrozenTrial]:
    return optuna.load_study(study_name="parabola", storage=url).trials


def sqlite(folder: Path) -> str:
    return f"sqlite:///{folder / 'study.db'}"


def chaos(folder: Path, url: str, kills: int, seed: int = 0, **options: Any) -> Counter[str]:
    """Run a study whose workers are killed, and check what is left of it."""
    process = start(folder, url=url, **options)
    try:
        kill_at_random(folder, process, kills, seed)
        assert process.wait(timeout=540) == 0, (folder / "errors").read_text()
    finally:
        process.kill()
    # On a busy machine a worker may be too late with its sign of life: its trial is lost as well.
    late = (folder / "errors").read_text().count("was failed as stale while it ran")
    stored = optuna.load_study(study_name="parabola", storage=url).trials
    done = check(stored, lines(folder), options["trials"], kills + late)
    print(f"{dict(done)}, {late} late")  # noqa: T201
    return done


@pytest.mark.slow
def test_killed_workers_lose_nothing(tmp_path: Path) -> None:
    done = chaos(tmp_path, sqlite(tmp_path), kills=2, trials=8, workers=2, seconds=0.4)
    assert done["retried"] >= 1
    assert done["complete"] + done["failed"] >= 8


@pytest.mark.slow
def test_twenty_kills_among_four_workers(tmp_path: Path) -> None:
    done = chaos(tmp_path, sqlite(tmp_path), kills=20, trials=60, workers=4, seconds=0.4)
    assert done["retried"] >= 5


@pytest.mark.slow
def test_a_trial_that_kills_its_worker_is_given_up(tmp_path: Path) -> None:
    process = start(tmp_path, trials=1, workers=2, deadly=True)
    assert process.wait(timeout=120) == 0, (tmp_path / "errors").read_text()
    trials = trials_of(sqlite(tmp_path))
    done = check(trials, lines(tmp_path), 1, kills=3)
    assert done["failed"] == 3
    assert {trial.params["x"] for trial in trials} == {0.5}


@pytest.mark.slow
@pytest.mark.parametrize(
    "last_call",
    [
        "compo_pipeline.tuning.study._check_fingerprint",
        "optuna.storages.RDBStorage.set_trial_state_values",
        "compo_pipeline.tuning.retries._enqueue_retry",
        "optuna.Study.ask",
        "compo_pipeline.tuning.workers.begin",
        "optuna.study._optimize._tell_with_warning",
    ],
)
def test_a_worker_is_killed_between_two_changes(tmp_path: Path, last_call: str) -> None:
    """After the call nothing else is written; the next worker has a stale trial to recover too."""
    options = {"trials": 3, "workers": 1}
    assert start(tmp_path, deadly=True, **options).wait(timeout=60) == -signal.SIGKILL
    time.sleep(4.5)  # the grace period is 3 s, the database's clock has whole seconds
    assert start(tmp_path, die=last_call, **options).wait(timeout=60) == -signal.SIGKILL
    assert start(tmp_path, **options).wait(timeout=60) == 0, (tmp_path / "errors").read_text()
    trials = trials_of(sqlite(tmp_path))
    done = check(trials, lines(tmp_path), 3, kills=2)
    assert done["complete"] == 3
    assert 0.5 in [trial.params["x"] for trial in trials if trial.state == TrialState.COMPLETE]


@pytest.mark.slow
def test_a_stopped_study_goes_on(tmp_path: Path) -> None:
    options = {"trials": 6, "workers": 2, "seconds": 0.5}
    process = start(tmp_path, **options)
    wait_for(tmp_path, process, 4)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) != 0
    stopped = trials_of(sqlite(tmp_path))
    assert {trial.state for trial in stopped} <= {TrialState.COMPLETE, TrialState.FAIL}
    reasons = {reason(trial) for trial in stopped if trial.state == TrialState.FAIL}
    assert reasons == {"interrupted"}

    assert start(tmp_path, **options).wait(timeout=120) == 0, (tmp_path / "errors").read_text()
    trials = trials_of(sqlite(tmp_path))
    assert [trial.state for trial in trials].count(TrialState.COMPLETE) == 6
    assert trials[: len(stopped)] == stopped
    counted = Counter(line.number for line in lines(tmp_path) if line.what == "begin")
    assert set(counted.values()) == {1}


@pytest.mark.slow
def test_twenty_kills_on_postgresql(tmp_path: Path, postgres: str) -> None:
    done = chaos(tmp_path, postgres, kills=20, seed=1, trials=60, workers=4, seconds=0.4)
    assert done["retried"] >= 5
