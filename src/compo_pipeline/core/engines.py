"""Map over partitions: a function of a partition, computed here, in processes or on a Ray cluster.

The function is sent to each worker once, with what it holds. Results come in the order of the
partitions, computed a bounded number ahead, so that memory does not grow with their number.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
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

from compo_pipeline.core import compute
from compo_pipeline.core.settings import SettingsError, pip_install, settings

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
    workers = settings.workers or (compute.cores() if threads else 1)
    start = (function, workers, Path.cwd())
    if settings.address is not None:
        yield from _map_on_cluster(start, partitions, settings.address, settings.workers)
        return
    if workers == 1:
        yield from map(function, partitions)
        return
    call: Callable[[Partition], Result] = _apply_function
    pool: Executor
    if settings.workers is None:
        pool, call = ThreadPoolExecutor(workers), function
    else:  # a forked worker would inherit whatever its parent had loaded
        spawn = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(workers, spawn, _start_worker, start)
    try:
        yield from in_order(pool, call, partitions, 2 * workers)
    except BrokenProcessPool:
        raise SettingsError(
            f"prepare.workers: one of {workers} processes died (killed, or out of memory); "
            f"expected fewer where memory is short. {_STORED}"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


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


def _map_on_cluster(
    start: tuple[Any, ...], partitions: Iterable[Any], address: str, workers: int | None
) -> Iterator[Any]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        from ray.util.multiprocessing import Pool

        ray.init(address, ignore_reinit_error=True, logging_level="ERROR", log_to_driver=False)
        pool = Pool(workers, _start_worker, start)
    # Ray ends the process where a cluster's versions or tokens differ.
    except (Exception, SystemExit) as error:  # noqa: BLE001
        raise SettingsError(
            f"prepare.address: Ray at {address} cannot be used: {_last_line(error)}; it needs "
            f"{pip_install('scale')}, and on every host the project's folder at the same path and, "
            "for a cluster with tokens, RAY_AUTH_MODE=token"
        ) from None
    try:
        with pool:
            for found in pool.imap(_apply_function, partitions):
                if isinstance(found, Exception):
                    raise getattr(found, "underlying", found)  # of Ray's PoolTaskError
                yield found
    except ray.exceptions.RayError as error:
        raise SettingsError(
            f"prepare.workers: a worker of Ray died ({_last_line(error)}); expected fewer where "
            f"memory is short, and the project's folder at one path on every host. {_STORED}"
        ) from None


def _last_line(error: BaseException) -> str:
    return next(reversed(str(error).split("\n")), "").strip() or type(error).__name__


_function: Callable[[Any], Any]


def _start_worker(function: Callable[[Any], Any], workers: int, folder: Path) -> None:
    """Initialise a worker: its function, folder and threads, and its end with the parent."""
    global _function
    _function = function
    os.chdir(folder)
    if parent := multiprocessing.parent_process():
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    compute.use_cores_later(workers)


def _end_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


def _apply_function(partition: Any) -> Any:
    return _function(partition)
