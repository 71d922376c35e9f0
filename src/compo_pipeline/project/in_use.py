"""The folders of a run, which one command at a time writes."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from compo_pipeline.configuration.settings import PlainError
from compo_pipeline.storage.files import read_json_or_none, write_json

log = logging.getLogger(__name__)


class InUse(PlainError, RuntimeError):
    """Error: another command is writing the folders of the same run."""


class RunLock:
    """File lock for a run's folders, which the system releases if the process is killed."""

    def __init__(self) -> None:
        self._held: FileLock | None = None

    def acquire(self, checkpoint: Path, written: Iterable[Path], command: str) -> None:
        """Lock the run's folder if the command writes in it; raise an error if it is locked.

        Args:
            checkpoint: of the run: `<layer>/<dataset>/<method>/<variant>/seed=<n>/checkpoint`.
            written: files and folders that the command writes.
            command: as the user would type it.

        Raises:
            InUse: another command has the lock; one line says which.
        """
        self.release()
        run = checkpoint.parent
        name = run.parts[-4:]
        if not any(_contains(path.parts, name) for path in written):
            return
        lock, holder = FileLock(run / "in_use.lock"), run / "in_use.json"
        try:
            run.mkdir(parents=True, exist_ok=True)
            lock.acquire(blocking=False)
        except Timeout:
            raise InUse(_lock_message(run, read_json_or_none(holder))) from None
        except (OSError, NotImplementedError) as error:  # read-only, or without locks
            log.warning("%s cannot be locked (%s): start no other command of this run", run, error)
            return
        self._held = lock
        since = datetime.now().astimezone().isoformat(timespec="seconds")
        own = {"process": os.getpid(), "host": socket.gethostname(), "since": since}
        write_json(holder, {**own, "command": command})

    def release(self) -> None:
        """Release the lock if it is held."""
        if self._held is not None:
            self._held.release()
            self._held = None


def _contains(parts: tuple[str, ...], name: tuple[str, ...]) -> bool:
    """Whether a path contains a sequence of consecutive components."""
    return any(parts[start : start + len(name)] == name for start in range(len(parts)))


def _lock_message(run: Path, holder: Mapping[str, Any] | None) -> str:
    """Error message with the process and command that hold the lock of a run."""
    found = holder or {}
    who = "process {process} of {host}, since {since}: {command}" if found else "another command"
    return (
        f"{run} is in use by {who.format_map(found)}; wait for its end, or name another run by "
        "--params variant=<name> or seed=<n>"
    )
