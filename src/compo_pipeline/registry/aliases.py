"""Aliases of a registered model: read, and moved so that a contest is noticed.

A store in a local file is locked while an alias is decided on. A server's aliases are
last-write-wins: there a contest can be noticed, not prevented.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from click import ClickException
from filelock import FileLock, Timeout

from compo_pipeline.registry.tracking import local_file

CHAMPION, PREVIOUS = "champion", "previous"

log = logging.getLogger(__name__)


def refuse_gates_own(key: str, alias: str) -> None:
    """Only a promotion gives the aliases that models are served by.

    Raises:
        ValueError: it is one of them.
    """
    if alias in (CHAMPION, PREVIOUS):
        raise ValueError(
            f"{key}: '{alias}' is given by `kedro run --pipeline=promotion` alone, through its gate"
        )


class Contested(ClickException, RuntimeError):
    """Somebody else moved an alias meanwhile."""


@dataclass(frozen=True, slots=True)
class Aliases:
    """The aliases of one registered model.

    Attributes:
        name: the registered model.
        settle: seconds after which a moved alias is read again.
    """

    name: str
    settle: float = 0.0

    def version(self, alias: str) -> int | None:
        """The number of the version that has the alias, None where none has."""
        import mlflow

        # The model's own list: asking for one alias cannot tell an absent one from an error.
        aliases = mlflow.MlflowClient().get_registered_model(self.name).aliases
        return int(aliases[alias]) if alias in aliases else None

    def move(self, alias: str, before: int | None, to: int) -> None:
        """Give an alias to a version.

        Args:
            alias: its name.
            before: the version that had it when the move was decided.
            to: the version that gets it.

        Raises:
            Contested: it was elsewhere before the move, or is elsewhere after it.
        """
        import mlflow

        self.expect(alias, before, "before it was moved; nothing was changed by this move")
        mlflow.MlflowClient().set_registered_model_alias(self.name, alias, str(to))
        time.sleep(self.settle)
        self.expect(alias, to, "after it was moved: another process moved it at the same time")

    def remove(self, alias: str) -> None:
        """Take an alias away."""
        import mlflow

        mlflow.MlflowClient().delete_registered_model_alias(self.name, alias)

    def expect(self, alias: str, version: int | None, when: str) -> None:
        """Make sure where an alias is.

        Raises:
            Contested: it is elsewhere.
        """
        found = self.version(alias)
        if found != version:
            raise Contested(
                f"contested: the alias '{alias}' of {self.name} should be at {_shown(version)} "
                f"and is at {_shown(found)} {when}. Look at the registry, then run again"
            )


def _shown(version: int | None) -> str:
    return "no version" if version is None else f"version {version}"


@contextmanager
def alone(uri: str) -> Iterator[None]:
    """One process at a time decides about aliases of a local store; on a server, no such promise.

    Args:
        uri: of the registry.
    """
    file = local_file(uri)
    if file is None:
        yield
        return
    lock = FileLock(file.with_name(f"{file.name}.promotion.lock"))
    try:
        lock.acquire(blocking=False)
    except Timeout:
        log.info("Waiting for another promotion in the same store.")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
