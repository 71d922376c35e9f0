"""A run is written by one command at a time."""

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kedro.framework.project import pipelines

from compo_pipeline.project.hooks import ProjectHooks
from compo_pipeline.project.in_use import InUse, RunLock
from compo_pipeline.project.settings import run_settings
from compo_pipeline.storage.files import atomic_folder

COMMAND = "kedro run --pipeline=train_eval"
HOLDER = """
import sys
from pathlib import Path
from compo_pipeline.project.in_use import RunLock
checkpoint = Path(sys.argv[1])
lock = RunLock()
lock.acquire(checkpoint, [checkpoint], sys.argv[2])
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "data/06_models/scenes/clic/default/seed=0/checkpoint"


def holder(checkpoint: Path) -> "subprocess.Popen[str]":
    """Another process that has the lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(checkpoint), COMMAND],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_a_second_command_of_a_run_is_told_who_has_it_until_that_is_killed(
    checkpoint: Path,
) -> None:
    other, lock = holder(checkpoint), RunLock()
    report = Path(str(checkpoint).replace("06_models", "08_reporting")).with_name("report")
    try:
        with pytest.raises(InUse) as raised:
            lock.acquire(checkpoint, [report], COMMAND)
        assert f"process {other.pid} of " in raised.value.message and COMMAND in str(raised.value)
        assert "\n" not in raised.value.message
        # Another seed, and what all runs of a data set share, are free.
        lock.acquire(Path(str(checkpoint).replace("=0", "=1")), [report], COMMAND)
        lock.acquire(checkpoint, [checkpoint.parents[3] / "data_docs"], COMMAND)
    finally:
        other.kill()
        other.communicate()
    lock.acquire(checkpoint, [report], COMMAND)
    again = RunLock()
    with pytest.raises(InUse):
        again.acquire(checkpoint, [report], COMMAND)
    lock.release()
    again.acquire(checkpoint, [report], COMMAND)
    again.release()


@pytest.mark.parametrize("pipeline", ["train_eval", "evaluation", "export", "views"])
def test_a_pipeline_that_writes_into_a_run_locks_it(
    context: Callable[..., Any],
    bootstrapped: Path,
    checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    pipeline: str,
) -> None:
    monkeypatch.chdir(bootstrapped)
    loaded, hooks = context(), ProjectHooks()
    monkeypatch.setattr(loaded.catalog["checkpoint"], "_filepath", checkpoint)
    hooks._parameters = loaded.params
    hooks._settings = run_settings(hooks._parameters)
    other = holder(checkpoint)
    try:
        with pytest.raises(InUse):
            hooks._lock_run([pipeline], pipelines[pipeline], loaded.catalog)
        hooks._lock_run(["validation"], pipelines["validation"], loaded.catalog)
        hooks._lock_run(["tuning"], pipelines["tuning"], loaded.catalog)
    finally:
        other.kill()
        other.communicate()


def test_a_folder_that_another_writer_removes_meanwhile_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, hidden = os.mkdir, list[str]()

    def taken(path: Any, *args: Any, **options: Any) -> None:
        if Path(path).name.startswith("."):
            hidden.append(os.fspath(path))
        if len(hidden) == 1 and hidden[0] == os.fspath(path):
            raise FileExistsError(errno.EEXIST, "File exists", path)
        make(path, *args, **options)

    monkeypatch.setattr(os, "mkdir", taken)
    with atomic_folder(tmp_path / "export") as temporary:
        (temporary / "README.md").write_text("whole")
    assert [path.name for path in tmp_path.iterdir()] == ["export"] and len(hidden) == 2


def test_several_writers_of_one_folder_replace_it_one_after_another(tmp_path: Path) -> None:
    folder, failures = tmp_path / "export", list[BaseException]()

    def write(number: int) -> None:
        try:
            for _ in range(50):
                with atomic_folder(folder) as temporary:
                    (temporary / "README.md").write_text(str(number))
        except OSError as error:
            failures.append(error)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert failures == []
    assert (folder / "README.md").read_text() in "0123"
    assert [path.name for path in tmp_path.iterdir()] == ["export"]
