"""Tables on disk, computed part by part here, in processes or on a Ray cluster.

Equal rows give equal bytes. A function is sent to each worker once, with what it holds; results
come in the order of the parts, a bounded number ahead, so that memory does not grow with theirs.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar, cast

from pydantic import Field, PositiveInt

from compo_pipeline.core import compute
from compo_pipeline.core.hashing import hash_of
from compo_pipeline.core.progress import Meter
from compo_pipeline.core.records import schema, to_table
from compo_pipeline.core.settings import SettingsError, pip_install, settings
from compo_pipeline.core.tables import GROUP, Row, Table, grouped, parquet_file, write_parquet

if TYPE_CHECKING:
    import pyarrow as pa

Partition = TypeVar("Partition")
Result = TypeVar("Result")

PART = 10_000
"""Rows that are computed together: what a kill loses at most."""
_DIED = (
    "prepare.workers: a worker died ({}); expected fewer where memory is short, and on a cluster "
    "the project's folder at one path on every host. Finished parts are stored, and the same "
    "command computes the rest"
)


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


@dataclass(frozen=True)
class Parts(Generic[Row]):
    """Rows of a table that `write_rows` computes in parts, so that it can resume after a kill."""

    what: str
    """Task for the progress bar."""

    compute: Callable[[range], Iterable[Row]]
    """Function that computes the rows of a part from the numbers of their inputs. It is sent to the
    workers."""

    count: int
    """Number of inputs."""

    fingerprint: str
    """Hash of everything that the rows depend on."""

    engine: PrepareSettings = LOCAL
    """Engine that computes the parts."""


@contextmanager
def resumable(folder: Path, fingerprint: str) -> Iterator[Path]:
    """Context manager: a folder for a computation's finished parts, which stays after a kill.

    After an error or a kill it stays, and the next computation with this fingerprint finds the
    parts. Those of others are removed.
    """
    own = folder / hash_of(fingerprint)
    own.mkdir(parents=True, exist_ok=True)
    for other in folder.iterdir():
        if other != own:
            shutil.rmtree(other)
    yield own
    shutil.rmtree(folder)


def write_rows(path: Path, rows: Iterable[Row] | Parts[Row], row_type: type[Row]) -> None:
    """Write rows as a Parquet table, atomically and in groups that fit into memory."""
    columns = schema(cast(type, row_type))
    if isinstance(rows, Parts):
        with resumable(path.with_name(f".{path.name}.parts"), rows.fingerprint) as folder:
            parts = map(_read, _compute(rows, folder, row_type))
            write_parquet(path, parts, columns)
    else:
        write_parquet(path, _groups(rows, row_type), columns)


def _compute(parts: Parts[Row], folder: Path, row_type: type[Row]) -> list[Path]:
    """Compute the missing parts as Parquet files in a folder.

    Returns the files of all parts.
    """
    starts = range(0, parts.count, PART)
    files = {
        folder / f"{start:09d}.parquet": range(start, min(start + PART, parts.count))
        for start in starts
    }
    missing = {file: part for file, part in files.items() if not file.exists()}
    compute = partial(_compute_part, parts.compute, row_type)
    with Meter(parts.count, parts.what, parts.count - sum(map(len, missing.values()))) as meter:
        tables = map_partitions(compute, missing.values(), parts.engine)
        for (file, part), table in zip(missing.items(), tables, strict=True):
            write_parquet(file, [table], table.schema)
            meter.advance(len(part))
    return list(files)


def _compute_part(
    compute: Callable[[range], Iterable[Row]], row_type: type[Row], part: range
) -> pa.Table:
    """Compute the rows of one part as an Arrow table, which is cheap to send between processes."""
    import pyarrow as pa

    return pa.concat_tables([to_table([], row_type), *_groups(compute(part), row_type)])


def _groups(rows: Iterable[Any], row_type: type) -> Iterator[pa.Table]:
    """Yield rows as Arrow tables of at most `GROUP`."""
    if isinstance(rows, Table):
        parts = (rows[start : start + GROUP] for start in range(0, len(rows), GROUP))
        yield from (part.to_arrow().combine_chunks().cast(schema(row_type)) for part in parts)
    else:
        yield from (to_table(group, row_type) for group in grouped(rows))


def _read(path: Path) -> pa.Table:
    with parquet_file(path) as file:
        return file.read()


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
        settings: settings of the workers.
        threads: whether this process calls the function from several threads if it computes alone.
            For functions that mostly decode or read.

    Raises:
        SettingsError: a worker died, or the cluster cannot be used.
    """
    workers = settings.workers or (compute.cores() if threads else 1)
    start = (function, workers, Path.cwd())
    if settings.address is not None:
        yield from _map_on_cluster(start, partitions, settings.address, settings.workers)
    elif workers == 1:
        yield from map(function, partitions)
    elif settings.workers is None:
        yield from compute.in_order(ThreadPoolExecutor(workers), function, partitions, 2 * workers)
    else:  # a forked worker would inherit whatever its parent had loaded
        spawn = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(workers, spawn, _start_worker, start)
        try:
            yield from compute.in_order(pool, _apply_function, partitions, 2 * workers)
        except BrokenProcessPool:
            raise SettingsError(_DIED.format("killed, or out of memory")) from None


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
    with pool:
        for found in pool.imap(_apply_function, partitions):
            if isinstance(found, ray.exceptions.RayError):
                raise SettingsError(_DIED.format(_last_line(found)))
            if isinstance(found, Exception):
                raise getattr(found, "underlying", found)  # of Ray's PoolTaskError
            yield found


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
        threading.Thread(target=_exit_with, args=(parent,), daemon=True).start()
    compute.use_cores_later(workers)


def _exit_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


def _apply_function(partition: Any) -> Any:
    """Call the function that this worker process was started with on a partition."""
    return _function(partition)
