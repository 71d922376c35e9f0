"""Map over partitions: a function of a partition, computed here, in processes or on a Ray cluster.

The function is sent to each worker once, with what it holds. Results come in the order of the
partitions, computed a bounded number ahead, so that memory does not grow with their number.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, PositiveInt

from compo_pipeline.configuration.settings import SettingsError, pip_install, settings
from compo_pipeline.run import compute

Partition = TypeVar("Partition")
Result = TypeVar("Result")

_STORED = "Finished parts are stored, and the same command computes the rest"


@settings
class PrepareSettings:
    """Settings of the workers that measure images, parse and edit captions and draw views."""

    workers: PositiveInt | None = None
    """Processes on this machine, or workers of the cluster; null: this process, which measures
    images in a thread for each core, or as many workers as the cluster has cores."""

    address: Annotated[str, Field(pattern=r"^[^\s:/]+:\d{1,5}$")] | None = None
    """host:port of a running Ray cluster that this machine is part of (extra `scale`); null
    computes on this machine."""


LOCAL = PrepareSettings()


def map_partitions(
    function: Callable[[Partition], Result],
    partitions: Iterable[Partition],
    settings: PrepareSettings,
    *,
    threads: bool = False,
) -> Iterator[Result]:
    """Results of a function for each partition of the work, in order.

    Args:
        function: importable, or an object of an importable class.
        partitions: small descriptions of what to compute, such as ranges of rows.
        settings: which workers compute.
        threads: whether this process, where it computes alone, calls the function from several
            threads; for functions that mostly decode or read.

    Raises:
        SettingsError: a worker died, or the cluster cannot be used.
    """
    if settings.address is not None:
        return _map_on_cluster(function, partitions, settings.address, settings.workers)
    workers = settings.workers or 1
    if workers > 1:
        # A forked worker would inherit whatever its parent had loaded.
        spawn = multiprocessing.get_context("spawn")
        start = function, workers, Path.cwd()
        pool = ProcessPoolExecutor(workers, spawn, _start_worker, start)
        return _map_in_pool(pool, _apply_function, partitions, workers)
    if threads and settings.workers is None and (workers := compute.cores()) > 1:
        return _map_in_pool(ThreadPoolExecutor(workers), function, partitions, workers)
    return map(function, partitions)


def in_order(
    pool: Executor,
    function: Callable[[Partition], Result],
    partitions: Iterable[Partition],
    ahead: int,
) -> Iterator[Result]:
    """Yield results of a function that a pool calls, in order, with at most `ahead` under way."""
    rest = iter(partitions)
    waiting = deque(pool.submit(function, each) for each in islice(rest, ahead))
    while waiting:
        yield waiting.popleft().result()
        waiting.extend(pool.submit(function, each) for each in islice(rest, 1))


def _map_in_pool(
    pool: Executor,
    function: Callable[[Partition], Result],
    partitions: Iterable[Partition],
    workers: int,
) -> Iterator[Result]:
    try:
        yield from in_order(pool, function, partitions, 2 * workers)
    except BrokenProcessPool:
        raise SettingsError(
            f"prepare.workers: one of {workers} processes died (killed, or out of memory); "
            f"expected fewer where memory is short. {_STORED}"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _map_on_cluster(
    function: Callable[[Partition], Result],
    partitions: Iterable[Partition],
    address: str,
    workers: int | None,
) -> Iterator[Result]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        from ray.util.multiprocessing import Pool
    except ImportError:
        raise SettingsError(
            f"prepare.address: ray is not installed; {pip_install('scale')}, or set null"
        ) from None
    try:
        ray.init(address, ignore_reinit_error=True, logging_level="ERROR", log_to_driver=False)
        pool = Pool(workers, _start_worker, (function, 1, Path.cwd()))
    # Ray ends the process where a cluster's versions or tokens differ.
    except (Exception, SystemExit) as error:  # noqa: BLE001
        raise SettingsError(
            f"prepare.address: Ray at {address} cannot be used: {_last_line(error)}; a cluster "
            "with tokens needs RAY_AUTH_MODE=token on every host"
        ) from None
    try:
        with pool:
            for found in pool.imap(_apply_function, partitions):
                if isinstance(found, Exception):
                    raise found
                yield found
    except ray.exceptions.RayError as error:
        raise SettingsError(
            f"prepare.workers: a worker of Ray died ({_last_line(error)}); expected fewer "
            f"where memory is short. {_STORED}"
        ) from None


def _last_line(error: BaseException) -> str:
    return next(reversed(str(error).split("\n")), "").strip() or type(error).__name__


_function: Callable[[Any], Any]


def _start_worker(function: Callable[[Any], Any], workers: int, folder: Path) -> None:
    """Initialise a worker: its function, folder and threads, and its end with the parent."""
    global _function
    _function = function
    try:
        os.chdir(folder)
    except OSError as error:
        raise SettingsError(
            f"prepare.address: host {socket.gethostname()} cannot read the project's folder "
            f"{folder} ({error.strerror}); it must be at this path on every host"
        ) from None
    if parent := multiprocessing.parent_process():
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    compute.use_cores_later(workers)


def _end_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


def _apply_function(partition: Any) -> Any:
    return _function(partition)
