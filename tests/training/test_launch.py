"""Trainings on several processes and hosts: as one process trains, and errors in one line."""

import ctypes
import multiprocessing
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from ipaddress import ip_address
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.elastic.rendezvous.api import RendezvousClosedError

from compo_pipeline.configuration.settings import SettingsError, parse
from compo_pipeline.methods.clic import Clic, ClicObjective, ClicViews
from compo_pipeline.methods.mixture import Mixture
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.training import checkpoint, launch
from compo_pipeline.training.checkpoint import Point, TrainingError
from compo_pipeline.training.inputs import TrainingInputs
from compo_pipeline.training.run import Job, Trainer, jobs_of
from compo_pipeline.training.settings import (
    DistributedSettings,
    EarlyStoppingSettings,
    OptimizerSettings,
    ValidationSettings,
)
from compo_pipeline.training.validation import HeldOut

CLIC = Clic(ClicViews(), ClicObjective(trains=("image", "text")))
# Adam would turn the rounding errors of a gradient of zero into whole steps.
OPTIMIZER = OptimizerSettings(lr=1e-2, lr_start=1e-3, lr_end=1e-4, eps=1e-2)
Points = dict[str, list[Point]]


@pytest.fixture
def plan(world: Any, views: Path, tiny_clip: Path, recipe: Any, tmp_path: Path) -> TrainingInputs:
    """Six steps of four rows."""
    model, settings = ModelSettings(f"local-dir:{tiny_clip}"), recipe(optimizer=OPTIMIZER)
    inputs = (world.captions, "data", views, world.root, model, settings, 0)
    return TrainingInputs(*inputs, tmp_path / "resume")


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

    launch.train(Trainer(plan), jobs(plan, method, control=control), report)
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
    file = "open_clip_model.safetensors"
    a, b = (load_file(plan.resume / name / file) for plan in (one, other))
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
def test_two_processes_mix_sources_as_one_does(
    plan: TrainingInputs, tmp_path: Path, world: Any
) -> None:
    """The same rows in the same order: as many of each source, and the same losses."""
    world = world.of_two_sources()
    views = world.drawn(CLIC, tmp_path / "views", mixture=Mixture({"many": 2.0, "few": 1.0}, 12, 0))
    mixed = replace(plan, captions=world.captions, views=views)
    alone, together = (
        on(count, mixed, tmp_path / str(count), workers=workers)
        for count, workers in ((1, 0), (2, 2))
    )
    for run in (alone, together):
        train(run)
    assert same_curves(curve(together), curve(alone)) and close(together, alone)
    for run in (alone, together):
        saved = checkpoint.read_progress(run.resume / "clic.safetensors")
        assert saved is not None
        counts = saved["progress"]["counts"]
        assert (counts["rows of many"], counts["rows of few"]) == (16, 8)


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
    done = Trainer(on(1, longer, folder)).steps_done(CLIC, "clic")
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


class SecondJoinsLate(DistributedSettings):
    """After a restart the second process joins later than gloo waits at a wrong address."""

    def __getattribute__(self, name: str) -> Any:
        here = os.environ.get("TORCHELASTIC_RESTART_COUNT"), os.environ.get("RANK")
        if name == "rdzv_timeout" and here == ("1", "1"):
            time.sleep(15)
        return super().__getattribute__(name)


@pytest.mark.slow
def test_a_restarted_process_does_not_look_for_those_before(
    plan: TrainingInputs, tmp_path: Path
) -> None:
    longer = replace(plan, settings=replace(plan.settings, epochs=6))
    late = on(2, longer, tmp_path / "late")
    distributed = SecondJoinsLate(nproc_per_node=2, max_restarts=1)
    late = replace(late, settings=replace(late.settings, distributed=distributed))
    killed: list[int] = []
    with once_at(7, late, lambda: killed.append(kill_last())):
        train(late)
    assert killed
    assert len(curve(late)) == 18


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


def hosts(plan: TrainingInputs, folder: Path, timeout: int = 60) -> list[TrainingInputs]:
    """The same training on two hosts, each with a folder of its own."""
    common = {"nnodes": 2, "rdzv_endpoint": f"localhost:{free_port()}", "rdzv_timeout": timeout}
    return [
        on(1, plan, folder / f"host {rank}", distributed={**common, "node_rank": rank})
        for rank in range(2)
    ]


@pytest.mark.slow
def test_two_hosts_train_together_and_one_of_them_writes(
    plan: TrainingInputs, tmp_path: Path, imported: ForkServerContext
) -> None:
    whole = on(1, plan, tmp_path / "whole")
    train(whole)
    first, second = hosts(plan, tmp_path)
    further = imported.Process(target=launch.join, args=(second, jobs(second)))
    further.start()
    train(first)
    further.join()
    assert further.exitcode == 0 and not second.resume.exists()
    assert same_curves(curve(first), curve(whole)) and close(first, whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seed": 1}, "seed: 1, not 0"),
        ({"data_hash": "other"}, "data: other, not data"),
        ({"nproc_per_node": 2}, "training.distributed.nproc_per_node"),
    ],
)
def test_a_host_that_does_not_fit_is_refused(
    plan: TrainingInputs,
    tmp_path: Path,
    imported: ForkServerContext,
    change: dict[str, Any],
    named: str,
) -> None:
    first, second = hosts(plan, tmp_path)
    own = {name: value for name, value in change.items() if hasattr(DistributedSettings, name)}
    distributed = replace(second.settings.distributed, **own)
    recipe = replace(second.settings, distributed=distributed)
    rest = {name: value for name, value in change.items() if name not in own}
    other = replace(second, settings=recipe, **rest)
    further = imported.Process(target=launch._launch, args=(other, jobs(other), None))
    further.start()
    with pytest.raises(TrainingError) as error:
        train(first)
    further.join()
    assert further.exitcode != 0
    assert named in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("rank", [0, 1])
def test_hosts_that_do_not_meet_are_an_error_in_time(
    plan: TrainingInputs, tmp_path: Path, rank: int
) -> None:
    missing = hosts(plan, tmp_path, timeout=1)[rank]
    began = time.monotonic()
    with pytest.raises(TrainingError, match="2 hosts did not meet at localhost") as error:
        train(missing) if rank == 0 else launch.join(missing, jobs(missing))
    assert time.monotonic() - began < 30 and "\n" not in str(error.value)
    assert "; )" not in str(error.value) and str(error.value).endswith("with node_rank 1")
    assert not (missing.resume / "clic.safetensors").exists()


@pytest.fixture
def networks() -> Iterator[list[str]]:
    """Two network namespaces on one wire, with the addresses 10.213.0.1 and 10.213.0.2."""
    names = [f"compo-{os.getpid()}-{number}" for number in range(2)]
    ends = [f"compo{os.getpid()}.{number}" for number in range(2)]
    commands = [f"ip netns add {name}" for name in names]
    commands.append(f"ip link add {ends[0]} type veth peer name {ends[1]}")
    for number, (name, end) in enumerate(zip(names, ends, strict=True), 1):
        commands.append(f"ip link set {end} netns {name}")
        commands.append(f"ip -n {name} address add 10.213.0.{number}/24 dev {end}")
        commands += [f"ip -n {name} link set {link} up" for link in ("lo", end)]
    try:
        for command in commands:
            try:
                subprocess.run(command.split(), check=True, capture_output=True)
            except (OSError, subprocess.CalledProcessError) as error:
                pytest.skip(f"no network namespaces: {command}: {error}")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def on_host(network: str, name: str, plan: TrainingInputs) -> None:
    """Train, or join a training, on a host with a network and a name of its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    new_network, new_names = 0x40000000, 0x04000000
    with Path("/run/netns", network).open() as file:
        assert libc.setns(file.fileno(), new_network) == 0, os.strerror(ctypes.get_errno())
    assert libc.unshare(new_names) == 0, os.strerror(ctypes.get_errno())
    socket.sethostname(name)
    first = plan.settings.distributed.node_rank == 0
    train(plan) if first else launch.join(plan, jobs(plan))


@pytest.mark.slow
def test_hosts_meet_that_do_not_know_the_names_of_one_another(
    plan: TrainingInputs, tmp_path: Path, imported: ForkServerContext, networks: list[str]
) -> None:
    whole = on(1, plan, tmp_path / "whole")
    train(whole)
    common = {"nnodes": 2, "rdzv_endpoint": "10.213.0.1:29400", "rdzv_timeout": 60}
    both = [
        on(1, plan, tmp_path / f"host {rank}", distributed={**common, "node_rank": rank})
        for rank in range(2)
    ]
    processes = [
        imported.Process(target=on_host, args=(network, f"unknown{rank}", inputs))
        for rank, (network, inputs) in enumerate(zip(networks, both, strict=True))
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert close(both[0], whole)


def test_a_further_host_waits_for_the_first_and_has_the_address_of_its_connection(
    plan: TrainingInputs, tmp_path: Path
) -> None:
    settings = hosts(plan, tmp_path)[1].settings.distributed
    with socket.socket() as server:
        later = threading.Timer(0.7, lambda: (server.bind(settings.meeting_point), server.listen()))
        later.start()
        address = launch._own_address(settings)
        later.join()
    assert address is not None and ip_address(address).is_loopback
    interface = launch._interface_of(address)
    assert interface is not None
    assert address in [each.address for each in psutil.net_if_addrs()[interface]]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([(0, 0, 0, "", ("127.0.1.1", 1))], "'host0' is 127.0.1.1 on this host"),
        (socket.gaierror("no address"), "'host0' is not known here (no address)"),
    ],
)
def test_a_name_by_which_others_cannot_reach_the_first_host_is_refused(
    monkeypatch: pytest.MonkeyPatch, found: Any, said: str
) -> None:
    def getaddrinfo(*_: Any, **__: Any) -> Any:
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with pytest.raises(SettingsError) as error:
        launch._own_address(DistributedSettings(nnodes=2, rdzv_endpoint="host0:29400"))
    assert f"training.distributed.rdzv_endpoint: {said}" in str(error.value)


@pytest.mark.parametrize("endpoint", ["host0", "host0:port", ":29400", "host0:99999"])
def test_an_endpoint_is_a_host_and_a_port(endpoint: str) -> None:
    given = {"nnodes": 2, "rdzv_endpoint": endpoint}
    with pytest.raises(SettingsError, match=r"training.distributed.*rdzv_endpoint.*host:port"):
        parse(DistributedSettings, given, "training.distributed")


def test_a_name_that_an_etcd_server_had_before_is_refused_by_key(
    plan: TrainingInputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def launched(*_: Any) -> None:
        raise RendezvousClosedError

    monkeypatch.setattr(launch, "elastic_launch", lambda *_: launched)
    with pytest.raises(TrainingError, match=r"training.distributed.rdzv_id: a training named '7'"):
        train(on(2, plan, tmp_path, distributed={"rdzv_id": "7"}))


def test_the_host_of_the_pipeline_is_no_further_one(plan: TrainingInputs, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"training.distributed.node_rank: expected"):
        launch.join(hosts(plan, tmp_path)[0], [])


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
