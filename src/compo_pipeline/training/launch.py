"""Trainings on several processes: torch's elastic agent on one host, torchrun on several.

Each process trains its share (`ranks`). The first one saves the states and checkpoints, and appends
the points of the curves to a file, from which they are reported here.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from compo_pipeline.core import compute, console
from compo_pipeline.training.checkpoint import Point, Progress, TrainingError
from compo_pipeline.training.inputs import TrainingInputs
from compo_pipeline.training.loop import Job, train_jobs
from compo_pipeline.training.ranks import Ranks
from compo_pipeline.training.settings import DistributedSettings

Report = Callable[[str, Point], None]

_LOOPBACK = "127.0.0.1"
_SECONDS_BETWEEN_LOOKS = 0.5
# How long processes wait for one another at a step, and for the first one's validation.
_EXCHANGE_TIMEOUT = timedelta(hours=1)
_HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)

log = logging.getLogger(__name__)


def processes(settings: DistributedSettings) -> int:
    """Number of processes of this host that are configured."""
    wanted = settings.nproc_per_node
    return max(1, torch.cuda.device_count()) if wanted == "auto" else wanted


def train(inputs: TrainingInputs, jobs: Sequence[Job], report: Report) -> dict[str, Progress]:
    """Train a method and its control, on the configured processes of this host.

    Args:
        inputs: data, base model and recipe.
        jobs: jobs to train, one after another.
        report: called with a job's name and each new point of its curves.

    Raises:
        TrainingError: a loss is not finite, or a process ended.
        KeyboardInterrupt: stopped by a signal; the same call resumes.
    """
    settings = inputs.settings.distributed
    # Without it, a restarted process may find the addresses of those before it.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    _silence_agent()
    with TemporaryDirectory() as folder, _torch_handles_signals():
        # Processes of one host meet through files: no port is open to the network.
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=processes(settings),
            rdzv_backend="c10d",
            rdzv_endpoint=f"{folder}/agent",
            rdzv_configs={"store_type": "file"},
            max_restarts=settings.max_restarts,
            monitor_interval=_SECONDS_BETWEEN_LOOKS,
            local_addr=_LOOPBACK,
        )
        points = inputs.resume / "points.jsonl"
        points.parent.mkdir(parents=True, exist_ok=True)
        points.write_text("")
        try:
            with _report_points(points, report):
                returned = elastic_launch(config, _train_process)(inputs, jobs, points, folder)
        except SignalException as error:
            raise KeyboardInterrupt from error
        except ChildFailedError as error:
            raise _first_failure(error, settings) from None
    progress: dict[str, Progress] = returned[0]
    return progress


def train_together(
    inputs: TrainingInputs, jobs: Sequence[Job], report: Report, meeting: str = "env://"
) -> dict[str, Progress]:
    """Train as one of several processes, which torchrun or `train` has started.

    Args:
        inputs: inputs that are equal in all processes, except for paths.
        jobs: jobs to train, one after another.
        report: called in the first process with a job's name and each new point of its curves.
        meeting: URL at which the processes meet.
    """
    local, here = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    compute.use_cores(here)
    dist.init_process_group(
        # Counts and JSON are exchanged in main memory.
        "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
        init_method=meeting,
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=_EXCHANGE_TIMEOUT,
    )
    ranks = Ranks(dist.get_rank(), dist.get_world_size())
    logging.getLogger("compo_pipeline").setLevel(logging.INFO if ranks.first else logging.ERROR)
    recipe = inputs.settings
    if restarts := int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")):
        log.warning("A process ended: all start again from the last state (restart %d).", restarts)
    if compute.choose_device(recipe.device, key="training.device").type == "cuda":
        recipe = replace(recipe, device=f"cuda:{local}")
    try:
        return train_jobs(replace(inputs, settings=recipe), jobs, report, ranks)
    finally:
        dist.destroy_process_group()


def _train_process(
    inputs: TrainingInputs, jobs: Sequence[Job], points: Path, folder: str
) -> dict[str, Progress]:
    """Main function of a training process of one host.

    Returns each job's progress.
    """
    root = logging.getLogger()
    if root.handlers:  # Kedro's: its command is imported here too
        console.log_plain_lines_off_terminal()
    else:
        root.addHandler(console.LineHandler())
    addresses = psutil.net_if_addrs().items()
    loopback = next(name for name, own in addresses if any(a.address == _LOOPBACK for a in own))
    os.environ |= {"GLOO_SOCKET_IFNAME": loopback, "NCCL_SOCKET_IFNAME": loopback}

    def report(name: str, point: Point) -> None:
        with points.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps([name, point])}\n")

    meeting = f"file://{folder}/{os.environ['TORCHELASTIC_RESTART_COUNT']}"
    return train_together(inputs, jobs, report, meeting)


def _first_failure(error: ChildFailedError, settings: DistributedSettings) -> TrainingError:
    """The error to raise for the process that failed first, with a one-line message."""
    _, failure = error.get_first_failure()
    message: Any = failure.message
    if isinstance(message, dict):
        message = message["message"]
    restarts = f" after {settings.max_restarts} restarts" if settings.max_restarts else ""
    return TrainingError(
        f"training.distributed: process {failure.local_rank} ended{restarts}: "
        f"{' '.join(message.split())}"
    )


def _silence_agent() -> None:
    """Disable the loggers of torch's elastic agent: its errors are raised here in one line."""
    for name in logging.root.manager.loggerDict:
        if name.startswith(("torch.distributed.elastic", "torchelastic-events")):
            logging.getLogger(name).disabled = True


@contextmanager
def _torch_handles_signals() -> Iterator[None]:
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
        line, last = "", False
        with points.open(encoding="utf-8") as file:
            while not last:
                last = ended.wait(_SECONDS_BETWEEN_LOOKS)
                for part in file:
                    line += part
                    if line.endswith("\n"):
                        report(*json.loads(line))
                        line = ""

    reader = threading.Thread(target=read, name="points of the curves")
    reader.start()
    try:
        yield
    finally:
        ended.set()
        reader.join()
