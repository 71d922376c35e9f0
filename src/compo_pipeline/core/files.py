"""Files on disk: atomic writes, JSON, errors of disks."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any
from uuid import uuid4

from compo_pipeline.core.settings import PlainError

FolderWriter = Callable[[Path], object]
"""A function that fills a folder, given its path."""

log = logging.getLogger(__name__)


class DamagedFileError(PlainError, ValueError):
    """Exception: a file cannot be read, or its content does not match its checksum."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} is damaged: {reason}")
        self.path, self._reason = path, reason

    def __reduce__(self) -> tuple[Any, ...]:
        return DamagedFileError, (self.path, self._reason)


class DiskFullError(PlainError, OSError):
    """Exception: the disk has no space left for a file."""

    def __init__(self, path: Path) -> None:
        usage = shutil.disk_usage(next(place for place in path.parents if place.is_dir()))
        super().__init__(
            f"no space is left for {path} ({usage.free / 2**20:.0f} MiB of "
            f"{usage.total / 2**30:.1f} GiB are free). Free some and run the same command again: "
            "data/06_models/**/resume of finished runs, other folders of runs in data/ that are "
            "no longer needed, and runs in mlruns/ can be deleted"
        )


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and, one after the other, the exceptions that caused it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def is_full_disk(error: BaseException) -> bool:
    """Whether an exception, or one of its causes, says that a disk or a quota is full."""
    numbers = (errno.ENOSPC, errno.EDQUOT)
    # Errors of SQLite and of libraries in Rust have no errno.
    texts = ("No space left on device", "disk is full")
    return any(
        getattr(each, "errno", None) in numbers or any(text in str(each) for text in texts)
        for each in causes(error)
    )


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path of the same name.

    The file written there replaces `path` at the end.

    After an error or a kill, `path` is as it was before. What a kill leaves beside it is removed by
    the next write of the same path. Several processes may write the same path: the last one to
    finish replaces it. Missing parent folders are created.

    Raises:
        DiskFullError: no space is left.
    """
    with _workspace(path) as folder:
        temporary = folder / path.name
        yield temporary
        with temporary.open("r+b") as file:
            os.fsync(file.fileno())
        temporary.replace(path)


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty temporary folder, which replaces `folder` as a whole at the end.

    After an error, `folder` is as it was before; after a kill it is the old one, the new one or,
    between two renames, absent. What a kill leaves beside it is removed by the next write of the
    same folder. Several processes may write the same folder: the last one to finish replaces it.

    Raises:
        DiskFullError: no space is left.
    """
    with _workspace(folder) as place:
        temporary = place / folder.name
        temporary.mkdir()
        yield temporary
        while temporary.exists():  # another writer may be faster
            with suppress(FileNotFoundError):
                folder.rename(place / uuid4().hex)
            try:
                temporary.rename(folder)
            except OSError:
                if not folder.exists():
                    raise


@contextmanager
def _workspace(path: Path) -> Iterator[Path]:
    """Yield an empty hidden folder beside `path` for a single writer.

    It is removed at the end.

    Libraries that write under a name of their own first leave nothing outside it when killed. The
    system releases the lock of a killed process, so the next writer removes what it left.
    """
    places = path.with_name(f".{path.name}.tmp")
    try:
        with ExitStack() as held:
            while True:
                folder = places / uuid4().hex
                # Other writers make and remove the same folders.
                with suppress(FileNotFoundError, FileExistsError, BlockingIOError):
                    folder.mkdir(parents=True)
                    _lock(folder, held)
                    if folder.exists():
                        break
            for other in places.iterdir():
                with suppress(OSError):  # it is in use, or gone
                    if _lock(other, held):
                        shutil.rmtree(other)
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
                with suppress(OSError):  # others may be at work
                    places.rmdir()
    except Exception as error:
        if is_full_disk(error) and not isinstance(error, DiskFullError):
            raise DiskFullError(path) from error
        raise


def _lock(folder: Path, held: ExitStack) -> bool:
    """Lock a folder, or return False if its file system (NFS) cannot lock folders.

    Raises:
        BlockingIOError: another writer has locked it.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    held.callback(os.close, descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True


def write_files(files: Mapping[str, str | bytes], folder: Path) -> None:
    """Replace a folder atomically by one with these files.

    Args:
        files: text or bytes, by path in the folder.
        folder: folder that is replaced.
    """
    with atomic_folder(folder) as new:
        for name, content in files.items():
            file = new / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content.encode() if isinstance(content, str) else content)


def size_and_time(path: Path) -> tuple[int, int]:
    """Size and modification time in ns of a file.

    One of them changes when its content does.
    """
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically."""
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any, indent: int | None = 2) -> None:
    """Write a value as a JSON file, atomically."""
    write_text(path, json.dumps(value, indent=indent, ensure_ascii=False) + "\n")


def record_json(record: Any) -> dict[str, Any]:
    """Fields of a dataclass as JSON-ready values, floats to six significant digits."""
    text = json.dumps(asdict(record))
    plain: dict[str, Any] = json.loads(text, parse_float=lambda x: float(f"{float(x):.6g}"))
    return plain


def read_json(path: Path) -> Any:
    """Read the value of a JSON file that `write_json` wrote.

    Raises:
        DamagedFileError: it is no JSON.
        FileNotFoundError: there is no such file.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DamagedFileError(path, f"it is no JSON ({error})") from error


def read_json_or_none(path: Path) -> Any:
    """Read the value of a JSON file of `write_json`, or None if the file is missing or damaged."""
    try:
        return read_json(path)
    except FileNotFoundError:
        return None
    except DamagedFileError as error:
        log.warning("%s; it is made again.", error.message)
        return None
