"""Engines of data preparation: a function of a partition, run here, in a pool or by Ray.

The function is sent to each worker once, with what it holds; each partition is a task. Results come
back in the order of the partitions, computed a bounded number ahead, so memory does not grow with
their number.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, PositiveInt

from compo_pipeline.configuration.settings import SettingsError, pip_install, settings
from compo_pipeline.run import compute

Partition = TypeVar("Partition")
Result = TypeVar("Result")

KEY = "prepare"

_RETRIES = 3  # of a task whose worker or host died
_CONNECTING = 5.0  # seconds
_STORED = "finished parts are stored, and the same command computes the rest"


@settings
class PrepareSettings:
    """Settings of the engine that prepares the data: local, a pool of processes, or Ray."""

    engine: Literal["local", "processes", "ray"] = "local"
    """`local`: in this process, `processes`: in a pool on this machine, `ray`: by Ray (extra
    `scale`), on this machine or a cluster. All give the same results. A GPU of this machine embeds
    for this process alone."""

    workers: PositiveInt | None = None
    """Partitions at a time; null: one for each core, of a cluster twice as many. The engine `local`
    measures so many images at a time, and computes the rest one after another."""

    address: Annotated[str, Field(pattern=r"^[^\s:/]+:\d{1,5}$")] | None = None
    """host:port of a running Ray cluster that this machine is part of; null starts Ray here."""

    def __post_init__(self) -> None:
        """Only Ray has an address."""
        if self.address is not None and self.engine != "ray":
            raise ValueError(
                f"address: expected null with the engine {self.engine}, got '{self.address}'"
            )


LOCAL = PrepareSettings()


def check(settings: PrepareSettings) -> None:
    """Check that the configured engine can be used: Ray is installed, and its cluster answers.

    Raises:
        SettingsError: Ray is not installed, or nothing listens at its address.
    """
    if settings.engine != "ray":
        return
    if find_spec("ray") is None:
        raise SettingsError(
            f"{KEY}.engine: ray is not installed; {pip_install('scale')}, or "
            "choose local or processes"
        )
    if settings.address is not None:
        host, _, port = settings.address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), _CONNECTING).close()
        except (OSError, OverflowError) as error:
            raise SettingsError(
                f"{KEY}.address: nothing answers at {settings.address} ({error}); start a cluster "
                "with `ray start --head`, or set null to start Ray on this machine"
            ) from None


def map_partitions(
    function: Callable[[Partition], Result],
    partitions: Iterable[Partition],
    settings: PrepareSettings,
    *,
    threads: bool = False,
    gpus: int = 0,
) -> Iterator[Result]:
    """Results of a function for each partition of the work, in order, by the configured engine.

    Args:
        function: importable, or an object of an importable class: other engines than `local` send
            it to their workers.
        partitions: small descriptions of what to compute, such as ranges of rows.
        settings: the engine.
        threads: whether the engine `local` calls the function from several threads; for functions
            that mostly decode or read.
        gpus: that a task needs; on `ray` alone.

    Raises:
        SettingsError: a worker died, or Ray cannot be reached.
    """
    if settings.engine == "ray":
        return _map_by_ray(function, partitions, settings, gpus)
    workers = settings.workers or compute.cores()
    if workers > 1 and settings.engine == "processes":
        return _map_by_processes(function, partitions, workers)
    if workers > 1 and threads:
        return _map_by_pool(ThreadPoolExecutor(workers), function, partitions, workers)
    return map(function, partitions)


def in_order(
    submit: Callable[[Partition], Any],
    result: Callable[[Any], Result],
    partitions: Iterable[Partition],
    ahead: int,
) -> Iterator[Result]:
    """Yield results of submitted tasks in order, with at most `ahead` tasks under way."""
    rest = iter(partitions)
    waiting = deque(map(submit, islice(rest, ahead)))
    while waiting:
        yield result(waiting.popleft())
        waiting.extend(map(submit, islice(rest, 1)))


def _map_by_pool(
    pool: Executor,
    function: Callable[[Partition], Result],
    partitions: Iterable[Partition],
    workers: int,
) -> Iterator[Result]:
    """Yield the results of a function for each partition, in order, from a pool of workers."""
    try:
        yield from in_order(
            lambda partition: pool.submit(function, partition),
            Future.result,
            partitions,
            2 * workers,
        )
    finally:
        pool.shutdown(cancel_futures=True)


def _map_by_processes(
    function: Callable[[Partition], Result], partitions: Iterable[Partition], workers: int
) -> Iterator[Result]:
    """Yield the results of a function for each partition, in order, from new processes."""
    # A forked worker would inherit whatever its parent had loaded.
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, spawn, _start_worker, (function, workers))
    try:
        yield from _map_by_pool(pool, _apply_function, partitions, workers)
    except BrokenProcessPool:
        raise SettingsError(
            f"{KEY}.workers: one of {workers} processes died (killed, or out of memory); expected "
            f"fewer where memory is short. {_STORED.capitalize()}"
        ) from None


_function: Callable[[Any], Any]


def _start_worker(function: Callable[[Any], Any], workers: int) -> None:
    """Initialise a worker process: its function, its threads, and its end with the parent."""
    global _function
    _function = function
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    compute.use_cores_later(workers)


def _end_with_parent() -> None:
    """End this worker process as soon as its parent process has ended."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _apply_function(partition: Any) -> Any:
    """Apply the worker process's function to a partition."""
    return _function(partition)


def _map_by_ray(
    function: Callable[[Partition], Result],
    partitions: Iterable[Partition],
    settings: PrepareSettings,
    gpus: int,
) -> Iterator[Result]:
    """Yield the results of a function for each partition, in order, from Ray tasks."""
    ray = _connect_ray(settings)
    task = ray.remote(_ray_task).options(num_cpus=1, num_gpus=gpus, max_retries=_RETRIES)
    # Within a list a reference stays one: the task fetches the object once for each worker.
    sent = [ray.put(function)]
    folder = Path.cwd()
    kind = "GPU" if gpus else "CPU"
    ahead = settings.workers or 2 * max(1, int(ray.cluster_resources().get(kind, 1)))
    try:
        yield from in_order(partial(task.remote, sent, folder), ray.get, partitions, ahead)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except ray.exceptions.RayError as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise SettingsError(
            f"{KEY}.engine: a worker of Ray died {_RETRIES + 1} times on one partition ({reason}); "
            f"expected fewer {KEY}.workers where memory is short. {_STORED.capitalize()}"
        ) from None


def _connect_ray(settings: PrepareSettings) -> Any:
    """Module `ray`, connected to the configured cluster, or with Ray started on this machine."""
    check(settings)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # A task without a GPU may still see those of its host.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    if not ray.is_initialized():
        local = {} if settings.address else {"num_cpus": settings.workers or compute.cores()}
        try:
            ray.init(
                settings.address or "local",
                include_dashboard=None if settings.address else False,
                logging_level="ERROR",
                log_to_driver=False,
                **local,
            )
        # Ray ends the process where a cluster's versions or tokens differ.
        except (Exception, SystemExit) as error:  # noqa: BLE001
            reason = " ".join(str(error).split())
            if settings.address:
                reason += "; a cluster with tokens needs RAY_AUTH_MODE=token on every host"
            raise SettingsError(
                f"{KEY}.address: Ray at {settings.address or 'this machine'} cannot be used: "
                f"{reason}"
            ) from None
    return ray


_fetched: tuple[str, Callable[[Any], Any]] | None = None


def _ray_task(sent: list[Any], folder: Path, partition: Any) -> Any:
    """Ray task: apply a function to a partition; each worker fetches the function once."""
    global _fetched
    import ray

    (reference,) = sent
    if _fetched is None or _fetched[0] != reference.hex():
        try:
            os.chdir(folder)
        except OSError as error:
            raise SettingsError(
                f"{KEY}.address: host {socket.gethostname()} cannot read the project's folder "
                f"{folder} ({error.strerror}); it must be at this path on every host"
            ) from None
        _fetched = reference.hex(), ray.get(reference)
    return _fetched[1](partition)
