"""Trainings on several processes and hosts: as one process trains, and errors in one line."""

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from pydantic import TypeAdapter
from tests.training.conftest import steps_done, weights

from compo_pipeline.core.records import Caption
from compo_pipeline.core.table_files import write_rows
from compo_pipeline.methods.clic import Clic, ClicObjective, ClicViews
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.training import checkpoint, launch
from compo_pipeline.training.checkpoint import Point, TrainingError
from compo_pipeline.training.inputs import HeldOut, TrainingInputs
from compo_pipeline.training.loop import Job, jobs_of, train_jobs
from compo_pipeline.training.settings import (
    DistributedSettings,
    EarlyStoppingSettings,
    OptimizerSettings,
    TrainingSettings,
    ValidationSettings,
)

CLIC = Clic(ClicViews(), ClicObjective(trains=("image", "text")))
# Adam would turn the rounding errors of a gradient of zero into whole steps.
OPTIMIZER = OptimizerSettings(lr=1e-2, lr_start=1e-3, lr_end=1e-4, eps=1e-2)
Points = dict[str, list[Point]]


@pytest.fixture
def plan(plan: TrainingInputs) -> TrainingInputs:
    return replace(plan, settings=replace(plan.settings, optimizer=OPTIMIZER))


def on(processes: int, plan: TrainingInputs, folder: Path, **changes: Any) -> TrainingInputs:
    """The same training on so many processes, with a folder of its own."""
    distributed = DistributedSettings(processes, **changes.pop("distributed", {}))
    settings = replace(plan.settings, distributed=distributed, **changes)
    return replace(plan, settings=settings, resume=folder)


def jobs(plan: TrainingInputs, method: Any = CLIC, *, control: bool = False) -> list[Job]:
    own, other = plan.resume / "checkpoint", plan.resume / "control_checkpoint"
    return jobs_of(method, own, other, control=control)


def train(
    plan: TrainingInputs, method: Any = CLIC, *, control: bool = False, stop: int | None = None
) -> Points:
    """Train a method; the points that were reported. An exception at a point stops one process."""
    points: Points = {}

    def report(name: str, point: Point) -> None:
        points.setdefault(name, []).append(point)
        if point["step"] == stop:
            raise KeyboardInterrupt

    several = plan.settings.distributed.nproc_per_node != 1
    start = launch.train if several else train_jobs
    start(plan, jobs(plan, method, control=control), report)
    return points


@contextmanager
def once_at(step: int, plan: TrainingInputs, act: Callable[[], object]) -> Iterator[None]:
    """Do something as soon as a training has reported a step."""
    ended = threading.Event()

    def look() -> None:
        file = plan.resume / "points.jsonl"
        while not ended.wait(0.05):
            if file.exists() and f'"step": {step},' in file.read_text():
                act()
                return

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def kill_last() -> int:
    """Kill the process that was started last; its number."""
    process = multiprocessing.active_children()[-1].pid
    assert process is not None
    os.kill(process, signal.SIGKILL)
    return process


def close(one: TrainingInputs, other: TrainingInputs, name: str = "checkpoint") -> bool:
    """Whether two trainings gave the same weights within floating point."""
    a, b = (weights(plan.resume / name) for plan in (one, other))
    return a.keys() == b.keys() and all(torch.allclose(a[key], b[key], atol=1e-5) for key in a)


def curve(plan: TrainingInputs, name: str = "clic") -> list[Point]:
    """The curve of a finished training; its losses are those of each batch."""
    saved = checkpoint.read_progress(plan.resume / f"{name}.safetensors")
    assert saved is not None and saved["progress"]["finished"]
    points: list[Point] = saved["progress"]["curve"]
    return points


def same_curves(one: list[Point], other: list[Point]) -> bool:
    return len(one) == len(other) and all(
        a == pytest.approx(b, rel=1e-3, abs=1e-5) for a, b in zip(one, other, strict=True)
    )


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("localhost", 0))
        port: int = server.getsockname()[1]
        return port


@pytest.mark.slow
def test_two_processes_train_as_one_does(plan: TrainingInputs, tmp_path: Path, world: Any) -> None:
    """With microbatches, validation, early stopping, and a control as long as the method."""
    held = replace(plan, held_out=HeldOut(world.captions[:6]))
    settings = {
        "validation": ValidationSettings(every=2),
        "early_stopping": EarlyStoppingSettings(1, min_delta=100.0),
        "keep": "best",
    }
    alone = on(1, held, tmp_path / "one", **settings)
    together = on(2, held, tmp_path / "two", microbatch=1, **settings)
    expected, found = train(alone, control=True), train(together, control=True)
    for name, folder in (("clic", "checkpoint"), ("control", "control_checkpoint")):
        assert same_curves(curve(together, name), curve(alone, name))
        assert curve(together, name)[-1]["step"] == 4  # of six: both stopped early
        assert close(together, alone, folder)
        assert [point["step"] for point in found[name]] == [one["step"] for one in expected[name]]
    one, two = (
        checkpoint.read_progress(run.resume / "clic.safetensors") for run in (alone, together)
    )
    assert one and two and one["progress"]["counts"] == two["progress"]["counts"]
    assert one["fingerprint"] == two["fingerprint"]


@pytest.mark.slow
def test_processes_of_one_host_listen_on_its_loopback_address(
    plan: TrainingInputs, tmp_path: Path
) -> None:
    together = on(2, plan, tmp_path / "two")
    addresses: list[str] = []

    def look() -> None:
        own = psutil.Process()
        for process in (own, *own.children(recursive=True)):
            for each in process.net_connections("inet"):
                if each.status == psutil.CONN_LISTEN:
                    addresses.append(each.laddr.ip)

    before = dict(os.environ)
    with once_at(2, together, look):
        train(together)
    assert dict(os.environ) == before
    assert addresses and all(ip_address(address).is_loopback for address in addresses), addresses


@pytest.mark.slow
def test_features_and_groups_are_shared(plan: TrainingInputs, tmp_path: Path) -> None:
    """Two processes embed half of the images each, and train on a group each."""
    method = Clic(ClicViews(), ClicObjective())
    settings = {"cache_features": True, "contrast_group": 2}
    alone, together = (on(count, plan, tmp_path / str(count), **settings) for count in (1, 2))
    for run in (alone, together):
        train(run, method)
    assert same_curves(curve(together), curve(alone)) and close(together, alone)


@pytest.mark.slow
def test_an_interrupted_training_goes_on_with_other_numbers_of_processes(
    plan: TrainingInputs, tmp_path: Path
) -> None:
    longer = replace(plan, settings=replace(plan.settings, epochs=6))
    whole, folder = on(1, longer, tmp_path / "whole"), tmp_path / "moving"
    train(whole)
    with (
        once_at(4, on(2, longer, folder), lambda: os.kill(os.getpid(), signal.SIGINT)),
        pytest.raises(KeyboardInterrupt),
    ):
        train(on(2, longer, folder))
    assert not multiprocessing.active_children()
    done = steps_done(on(1, longer, folder), CLIC, "clic")
    assert 2 <= done < 18  # a state is saved behind its point
    if done < 12:
        with pytest.raises(KeyboardInterrupt):
            train(on(1, longer, folder), stop=done + 3)
    train(on(4, longer, folder))
    moved = on(1, longer, folder)
    assert same_curves(curve(moved), curve(whole)) and close(moved, whole)


@pytest.mark.slow
def test_a_killed_process_is_replaced(plan: TrainingInputs, tmp_path: Path) -> None:
    longer = replace(plan, settings=replace(plan.settings, epochs=6))
    whole = on(1, longer, tmp_path / "whole")
    restarting = on(2, longer, tmp_path / "killed", distributed={"max_restarts": 1})
    train(whole)

    with once_at(7, restarting, kill_last):
        points = train(restarting)
    steps = [point["step"] for point in points["clic"]]
    assert len(steps) > len(set(steps)) or steps == sorted(steps)
    assert same_curves(curve(restarting), curve(whole)) and close(restarting, whole)

    mortal = on(2, longer, tmp_path / "mortal")
    with once_at(7, mortal, kill_last), pytest.raises(TrainingError) as error:
        train(mortal)
    assert "training.distributed: process" in str(error.value) and "SIGKILL" in str(error.value)
    assert "\n" not in str(error.value) and not multiprocessing.active_children()
    train(mortal)  # the state is as it was
    assert close(mortal, whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "changes", "named"),
    [
        (3, {}, "3 processes cannot share a batch of 4 rows"),
        (2, {"model": ModelSettings("local-dir:/nowhere")}, "no open_clip_config.json in /nowhere"),
        (2, {"views": Path("/nowhere")}, "/nowhere"),
    ],
)
def test_a_process_that_ends_at_its_start_says_why(
    plan: TrainingInputs, tmp_path: Path, processes: int, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(TrainingError) as error:
        train(replace(on(processes, plan, tmp_path / "new"), **changes))
    assert named in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "new" / "clic.safetensors").exists()


TOGETHER = """
import sys
from pathlib import Path
from compo_pipeline.methods.clic import Clic, ClicObjective, ClicViews
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.core.records import Caption
from compo_pipeline.core.tables import Table
from compo_pipeline.training.inputs import TrainingInputs
from compo_pipeline.training.launch import train_together
from compo_pipeline.training.loop import Job, jobs_of
from compo_pipeline.training.settings import TrainingSettings
from pydantic import TypeAdapter
captions, views, root, model, recipe, resume = map(Path, sys.argv[1:])
settings = TypeAdapter(TrainingSettings).validate_json(recipe.read_text())
base, rows = ModelSettings(f"local-dir:{model}"), Table.open(captions, Caption)
inputs = TrainingInputs(rows, "data", views, root, base, settings, 0, resume)
method = Clic(ClicViews(), ClicObjective(trains=("image", "text")))
jobs = jobs_of(method, resume / "checkpoint", resume / "control_checkpoint", control=False)
train_together(inputs, jobs, lambda name, point: None)
"""


@pytest.mark.slow
def test_two_hosts_of_torchrun_train_as_one_process_does(
    plan: TrainingInputs, tmp_path: Path, tiny_clip: Path
) -> None:
    whole = on(1, plan, tmp_path / "whole")
    train(whole)
    script, captions, recipe = (tmp_path / name for name in ("run.py", "rows.parquet", "r.json"))
    script.write_text(TOGETHER)
    write_rows(captions, plan.captions, Caption)
    recipe.write_bytes(TypeAdapter(TrainingSettings).dump_json(plan.settings))
    given = map(str, (script, captions, plan.views, plan.root, tiny_clip, recipe))
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    command += ["--master-addr=localhost", f"--master-port={free_port()}"]
    inputs = list(given)
    hosts = [
        subprocess.Popen([*command, f"--node-rank={rank}", *inputs, str(tmp_path / f"host {rank}")])
        for rank in range(2)
    ]
    assert [host.wait() for host in hosts] == [0, 0]
    assert not (tmp_path / "host 1").exists()
    together = on(1, plan, tmp_path / "host 0")
    assert steps_done(together, CLIC, "clic") == 6
    train(together)  # exports what is trained
    assert same_curves(curve(together), curve(whole)) and close(together, whole)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("changes", [{}, {"microbatch": 1, "gradient_checkpointing": True}])
def test_gpus_train_as_a_processor_does(
    plan: TrainingInputs, tmp_path: Path, processes: int, changes: dict[str, Any]
) -> None:
    if torch.cuda.device_count() < processes:
        pytest.skip(f"{torch.cuda.device_count()} GPU, and {processes} are needed")
    processor = on(1, plan, tmp_path / "cpu")
    gpu = on(processes, plan, tmp_path / "gpu", device="cuda", workers=1, **changes)
    train(processor)
    train(gpu)
    assert same_curves(curve(gpu), curve(processor))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("precision", ["fp16", "auto"])
def test_a_compiled_training_in_half_precision_has_finite_losses(
    plan: TrainingInputs, tmp_path: Path, precision: str
) -> None:
    half = on(1, plan, tmp_path / "half", device="cuda", precision=precision, compile=True)
    train(half)
    assert all(point["loss"] < 10 for point in curve(half) if "loss" in point)
