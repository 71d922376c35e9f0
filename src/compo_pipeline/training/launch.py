"""Trainings on several processes and hosts: torch's elastic agent starts and restarts them.

Each process gets the inputs of the training, trains its share (`ranks`) and ends. The first one
saves the state and the checkpoints, and appends the points of the curves to a file that is read
here, where they are logged.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store, TCPStore
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous.api import RendezvousClosedError, RendezvousError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.distributed.rendezvous import rendezvous

from compo_pipeline.configuration.settings import SettingsError
from compo_pipeline.run import compute, console
from compo_pipeline.training.checkpoint import Point, Progress, TrainingError
from compo_pipeline.training.inputs import TrainingInputs
from compo_pipeline.training.ranks import Ranks
from compo_pipeline.training.run import Job, Trainer, train_jobs
from compo_pipeline.training.settings import DistributedSettings

KEY = "training.distributed"
Report = Callable[[str, Point], None]

_LOOPBACK = "127.0.0.1"
_SECONDS_BETWEEN_LOOKS = 0.5
_AGENT = "torch.distributed.elastic"
_HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)

log = logging.getLogger(__name__)


def train(trainer: Trainer, jobs: Sequence[Job], report: Report) -> dict[str, Progress]:
    """Train a method and its control, on as many processes as are configured.

    Args:
        trainer: of this process, where it trains alone.
        jobs: what is trained, one after another.
        report: called with a job's name and each new point of its curves.

    Raises:
        TrainingError: a loss is not finite, or a process ended or was not found.
        KeyboardInterrupt: stopped by a signal; the same call resumes.
    """
    inputs = trainer.inputs
    settings = inputs.settings.distributed
    if settings.nnodes == processes_here(settings) == 1:
        return train_jobs(trainer, jobs, report)
    points = inputs.resume / "points.jsonl"
    points.parent.mkdir(parents=True, exist_ok=True)
    points.write_text("")
    with _report_points(points, report):
        returned = _launch(inputs, jobs, points)
    (done,) = filter(None, returned.values())
    return {name: Progress.from_dict(progress) for name, progress in done.items()}


def join(inputs: TrainingInputs, jobs: Sequence[Job]) -> None:
    """Train on a further host, as a part of a training that another host leads and stores.

    Raises:
        SettingsError: the settings are those of a training on one host, or of its first host.
        TrainingError: as `train`.
    """
    settings = inputs.settings.distributed
    if not 0 < settings.node_rank < settings.nnodes:
        raise SettingsError(
            f"{KEY}.node_rank: expected the number of a further host, from 1 to nnodes - 1, got "
            f"{settings.node_rank} of {settings.nnodes}; host 0 is the one that runs the pipeline"
        )
    _launch(inputs, jobs, None)
    log.info("the training has ended; its results are on host 0")


def processes_here(settings: DistributedSettings) -> int:
    """Number of training processes on this host; `auto` is one for each GPU, else one."""
    if settings.nproc_per_node == "auto":
        return max(1, torch.cuda.device_count())
    return settings.nproc_per_node


def _launch(inputs: TrainingInputs, jobs: Sequence[Job], points: Path | None) -> dict[int, Any]:
    """Run `_train_process` in all processes of this host; returns the result of each by its number.

    The numbers are the agent's.
    """
    settings = inputs.settings.distributed
    with ExitStack() as held:
        held.enter_context(_restore_environment())
        config = _launch_config(settings, held)
        # A store for each round: in a shared one, a restarted process may find the addresses of
        # those before it.
        os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        _silence_agent()
        held.enter_context(_restore_signal_handlers())
        return _run_agent(settings, config, inputs, jobs, points)


@contextmanager
def _restore_environment() -> Iterator[None]:
    """Context manager that restores the environment variables as they were before.

    Variables are set for torch and its processes.
    """
    before = dict(os.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _launch_config(settings: DistributedSettings, held: ExitStack) -> LaunchConfig:
    """Configuration with which torch's elastic agent starts the processes of this host.

    Processes of one host meet through a file, which is removed when `held` closes, and exchange on
    the loopback address: none of their ports is open to the network.
    """
    address = _own_address(settings)
    rendezvous_of: dict[str, Any] = {
        "is_host": settings.node_rank == 0,
        "join_timeout": settings.rdzv_timeout,
        "read_timeout": settings.rdzv_timeout,
    }
    endpoint = settings.rdzv_endpoint
    if endpoint is None:
        endpoint = f"{held.enter_context(TemporaryDirectory())}/store"
        rendezvous_of["store_type"] = "file"
    if interface := _interface_of(address):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        if address == _LOOPBACK:
            os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
    return LaunchConfig(
        min_nodes=settings.nnodes,
        max_nodes=settings.nnodes,
        nproc_per_node=processes_here(settings),
        run_id=settings.rdzv_id,
        rdzv_backend=settings.rdzv_backend,
        rdzv_endpoint=endpoint,
        rdzv_configs=rendezvous_of,
        max_restarts=settings.max_restarts,
        monitor_interval=_SECONDS_BETWEEN_LOOKS,
        local_addr=address,
    )


def _run_agent(
    settings: DistributedSettings,
    config: LaunchConfig,
    inputs: TrainingInputs,
    jobs: Sequence[Job],
    points: Path | None,
) -> dict[int, Any]:
    """Run torch's elastic agent, and raise its errors with one-line messages.

    Raises:
        TrainingError: a process ended, or hosts did not meet.
        KeyboardInterrupt: stopped by a signal.
    """
    try:
        returned: dict[int, Any] = elastic_launch(config, _train_process)(inputs, jobs, points)
    except SignalException as error:
        raise KeyboardInterrupt from error
    except ChildFailedError as error:
        raise _first_failure(error, settings) from None
    except RendezvousClosedError:
        raise TrainingError(
            f"{KEY}.rdzv_id: a training named '{settings.rdzv_id}' has ended at "
            f"{settings.rdzv_endpoint}; expected a new name, the same on all hosts"
        ) from None
    except RendezvousError as error:
        raise _rendezvous_error(settings, error) from None
    return returned


def _own_address(settings: DistributedSettings) -> str:
    """Network address of this host for the other hosts; the loopback address if it is alone.

    By itself torch takes the host's name, which others may not know, and which the host itself may
    take for a loopback address. A further host waits here until the first one is there, since
    torch's store would wait for several times its timeout.

    Raises:
        SettingsError: the endpoint is a loopback address on the first host.
        TrainingError: there is no connection within `rdzv_timeout`.
    """
    if settings.rdzv_endpoint is None:
        return _LOOPBACK
    host, port = settings.meeting_point
    if settings.node_rank == 0 and settings.rdzv_backend == "c10d":
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise SettingsError(
                f"{KEY}.rdzv_endpoint: '{host}' is not known here ({error})"
            ) from None
        address = str(found[0][4][0])
        if ip_address(address).is_loopback and host not in ("localhost", address):
            raise SettingsError(
                f"{KEY}.rdzv_endpoint: '{host}' is {address} on this host, where others cannot "
                "reach it; give the address or name by which they do"
            )
        return address
    log.info("host %d of %d: waiting for %s", settings.node_rank, settings.nnodes, host)
    last = time.monotonic() + settings.rdzv_timeout
    while True:
        left = last - time.monotonic()
        try:
            with socket.create_connection((host, port), max(left, 1)) as connection:
                return str(connection.getsockname()[0])
        except OSError as error:
            if left < 0:
                raise _rendezvous_error(settings, error) from None
        time.sleep(_SECONDS_BETWEEN_LOOKS)


def _interface_of(address: str) -> str | None:
    """Name of the network interface that has an address; None if none has it."""
    interfaces = psutil.net_if_addrs().items()
    found = (name for name, own in interfaces if any(each.address == address for each in own))
    return next(found, None)


def _rendezvous_error(settings: DistributedSettings, error: Exception) -> TrainingError:
    """The error to raise when the hosts did not meet at the endpoint in time."""
    reason = f"; {error}" if str(error) else ""  # torch's timeout says nothing
    others = "1" if settings.nnodes == 2 else f"1 to {settings.nnodes - 1}"
    return TrainingError(
        f"{KEY}: {settings.nnodes} hosts did not meet at {settings.rdzv_endpoint} within "
        f"{settings.rdzv_timeout} s (rdzv_timeout{reason}); start `kedro run` on host 0, and "
        f"`compo-pipeline worker` on each further host, with node_rank {others}"
    )


def _first_failure(error: ChildFailedError, settings: DistributedSettings) -> TrainingError:
    """The error to raise for the process that failed first, with a one-line message."""
    _, failure = error.get_first_failure()
    message: Any = failure.message
    if isinstance(message, dict):
        message = message["message"]
    restarts = f" after {settings.max_restarts} restarts" if settings.max_restarts else ""
    return TrainingError(
        f"{KEY}: process {failure.local_rank} of host {settings.node_rank} ended{restarts}: "
        f"{' '.join(message.split())}"
    )


def _silence_agent() -> None:
    """Disable the log of torch's elastic agent.

    It tells of its own states, and of errors that are raised here in one line.

    Each of its loggers has a level of its own.
    """
    loggers = [name for name in logging.root.manager.loggerDict if name.startswith(_AGENT)]
    for name in (*loggers, "torchelastic-events-null"):
        logging.getLogger(name).disabled = True


@contextmanager
def _restore_signal_handlers() -> Iterator[None]:
    """Context manager that restores the signal handlers, which torch's agent replaces."""
    handlers = {number: signal.getsignal(number) for number in _HANDLED}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def _report_points(points: Path, report: Report) -> Iterator[None]:
    """Context manager: a thread reports each line that is appended to a file of curve points."""
    ended = threading.Event()

    def read() -> None:
        with points.open(encoding="utf-8") as file:
            line = ""
            while True:
                last = ended.wait(_SECONDS_BETWEEN_LOOKS)
                for part in file:
                    line += part
                    if line.endswith("\n"):
                        name, point = json.loads(line)
                        report(name, point)
                        line = ""
                if last:
                    return

    reader = threading.Thread(target=read, name="points of the curves")
    reader.start()
    try:
        yield
    finally:
        ended.set()
        reader.join()


def _train_process(
    inputs: TrainingInputs, jobs: Sequence[Job], points: Path | None
) -> dict[str, Any] | None:
    """Main function of a training process; the first process returns each job's progress."""
    settings = inputs.settings.distributed
    local, here = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    compute.use_cores(here)
    _join_group(settings, local, here)
    ranks = Ranks.of_process_group()
    _set_up_log(first=ranks.first)
    if restarts := int(os.environ["TORCHELASTIC_RESTART_COUNT"]):
        text = "A process ended: all start again from the last state (%d of %d restarts)."
        log.warning(text, restarts, settings.max_restarts)
    recipe = inputs.settings
    if compute.choose_device(recipe.device, key="training.device").type == "cuda":
        recipe = replace(recipe, device=f"cuda:{local}")

    def report(name: str, point: Point) -> None:
        if points is not None:
            with points.open("a", encoding="utf-8") as file:
                file.write(f"{json.dumps([name, point])}\n")

    try:
        done = train_jobs(Trainer(replace(inputs, settings=recipe), ranks), jobs, report)
    finally:
        dist.destroy_process_group()
    return {name: one.as_dict() for name, one in done.items()} if ranks.first else None


def _set_up_log(*, first: bool) -> None:
    """Set up the log of a training process: the first process logs all, any other only errors."""
    root = logging.getLogger()
    if root.handlers:  # Kedro's: its command is imported here too
        console.log_plain_lines_off_terminal()
    else:
        root.addHandler(console.LineHandler())
    logging.getLogger("compo_pipeline").setLevel(logging.INFO if first else logging.ERROR)


def _meeting_store(
    settings: DistributedSettings, place: int, world: int, timeout: timedelta
) -> Store:
    """Key-value store through which the processes meet, on a port of the first process.

    Torch's own listens on all addresses.
    """
    if settings.rdzv_endpoint is not None:
        met: tuple[Store, int, int] = next(
            iter(rendezvous("env://", place, world, timeout=timeout))
        )
        return met[0]
    port = int(os.environ["MASTER_PORT"])
    if place:
        return TCPStore(_LOOPBACK, port, world, timeout=timeout)
    server = socket.create_server((_LOOPBACK, port)).detach()
    return TCPStore(
        _LOOPBACK, port, world, is_master=True, timeout=timeout, master_listen_fd=server
    )


def _join_group(settings: DistributedSettings, local: int, here: int) -> None:
    """Join torch's process group, with ranks in the order of the configured host numbers.

    The agent numbers hosts at random, but the first process must be on the host that writes.

    Raises:
        SettingsError: the hosts' numbers, or those of their processes, do not fit together.
    """
    place, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    timeout = timedelta(seconds=settings.rdzv_timeout)
    store = _meeting_store(settings, place, world, timeout)
    store.set(f"host {place}", json.dumps([settings.node_rank, here]))
    # Every process reads what all have written, so that all end with the same error.
    found = [json.loads(store.get(f"host {each}")) for each in range(world)]
    counts = {count for _, count in found}
    if len(counts) > 1:
        raise SettingsError(
            f"{KEY}.nproc_per_node: expected as many processes on every host, got "
            f"{' and '.join(map(str, sorted(counts)))}"
        )
    hosts = sorted(host for host, _ in found)[::here]
    if hosts != list(range(settings.nnodes)):
        raise SettingsError(
            f"{KEY}.node_rank: expected one host each with the numbers 0 to {settings.nnodes - 1}, "
            f"got {', '.join(map(str, hosts))}"
        )
    dist.init_process_group(
        # Counts and JSON are exchanged in main memory.
        "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
        store=store,
        rank=settings.node_rank * here + local,
        world_size=world,
        timeout=timedelta(seconds=settings.exchange_timeout),
    )
