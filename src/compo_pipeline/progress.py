"""Progress of long loops: a bar on a terminal, now and then a log line elsewhere.

Whoever sets this module's log to warnings alone hears and sees nothing of it.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

Item = TypeVar("Item")

_log = logging.getLogger(__name__)
_SECONDS_BETWEEN_LINES = 10.0


def _bars() -> bool:
    """Whether progress is shown as bars: on a terminal, unless this log was told to be quiet."""
    return sys.stderr.isatty() and _log.isEnabledFor(logging.INFO)


def track(items: Iterable[Item], total: int, what: str) -> Iterator[Item]:
    """Pass items on and show how far the loop has come.

    Args:
        items: what the loop runs over.
        total: how many there will be.
        what: what is done, for the bar and the log ("measuring pictures").
    """
    if _bars():
        from tqdm import tqdm

        yield from tqdm(items, total=total, desc=what, dynamic_ncols=True)
        return
    started = shown = time.monotonic()
    done = 0
    for item in items:
        yield item
        done += 1
        now = time.monotonic()
        if now - shown >= _SECONDS_BETWEEN_LINES:
            shown = now
            left = (total - done) * (now - started) / done
            _log.info("%s: %d of %d, about %.0f s left", what, done, total, left)
    _log.info("%s: %d in %.1f s", what, done, time.monotonic() - started)


class Meter:
    """Progress of a loop that has figures to show: a bar on a terminal, log lines elsewhere.

    Args:
        total: steps there will be.
        what: what is done.
        done: steps that an earlier run has done.
    """

    def __init__(self, total: int, what: str, done: int = 0) -> None:
        self._total, self._what, self._done, self._begun = total, what, done, done
        self._started = self._shown = time.monotonic()
        self._bar: Any = None

    def __enter__(self) -> Meter:
        """Show the bar, where there is a terminal."""
        if _bars():
            from tqdm import tqdm

            self._bar = tqdm(
                total=self._total, initial=self._done, desc=self._what, dynamic_ncols=True
            )
        return self

    def advance(self, **figures: float) -> None:
        """One step is done; `figures` are its numbers."""
        self._done += 1
        if self._bar is not None:
            self._bar.set_postfix({k: f"{v:.3g}" for k, v in figures.items()}, refresh=False)
            self._bar.update()
            return
        now = time.monotonic()
        if now - self._shown >= _SECONDS_BETWEEN_LINES or self._done == self._total:
            self._shown = now
            rate = (self._done - self._begun) / (now - self._started)
            shown = ", ".join(f"{name} {value:.3g}" for name, value in figures.items())
            _log.info(
                "%s: step %d of %d, %s, %.1f steps a second, about %.0f s left",
                *(self._what, self._done, self._total, shown, rate),
                (self._total - self._done) / rate,
            )

    def __exit__(self, *error: object) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._bar.close()
