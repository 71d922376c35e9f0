"""Progress of long loops: a bar on a terminal, a log line every ten seconds elsewhere.

On a terminal the bar is below the log lines and disappears when the loop ends. With this module's
logger set to warnings there is neither.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

import rich

if TYPE_CHECKING:
    from rich.progress import Progress

Item = TypeVar("Item")

_log = logging.getLogger(__name__)
_SECONDS_BETWEEN_LINES = 10.0


def track(items: Iterable[Item], total: int, what: str) -> Iterator[Item]:
    """Yield the items of a loop, and show its progress.

    Args:
        items: items to loop over.
        total: number of items.
        what: task, for the progress bar and the log ("measuring images").
    """
    with Meter(total, what) as meter:
        for item in items:
            yield item
            meter.advance()


class Meter:
    """Progress of a loop, as a bar or log lines, with optional numbers such as the loss.

    Args:
        total: number of steps.
        what: label of the loop.
        done: steps of an earlier, interrupted run.
    """

    def __init__(self, total: int, what: str, done: int = 0) -> None:
        self._total, self._what, self._done, self._begun = total, what, done, done
        self._started = self._logged = time.monotonic()
        self._figures: dict[str, float] = {}
        self._bar: Progress | None = None

    def __enter__(self) -> Meter:
        """Show the bar on a terminal."""
        self._bar = _progress_bar()
        if self._bar is not None:
            self._bar.add_task(self._what, total=self._total, completed=self._done, figures="")
            self._bar.start()
        return self

    def advance(self, steps: int = 1, /, **figures: float) -> None:
        """Count finished steps, and show numbers of the last one (`figures`) beside the progress.

        Without any, the last ones stay.
        """
        self._done += steps
        self._figures = figures or self._figures
        now = time.monotonic()
        if self._bar is not None:
            shown = ", ".join(self._number_texts(now))
            self._bar.update(self._bar.task_ids[0], completed=self._done, figures=shown)
        elif now - self._logged >= _SECONDS_BETWEEN_LINES and self._done < self._total:
            self._logged = now
            left = (self._total - self._done) / self._rate(now)
            words = [
                f"{self._done} of {self._total}",
                *self._number_texts(now),
                f"about {left:.0f} s left",
            ]
            _log.info("%s: %s", self._what, ", ".join(words))

    def __exit__(self, error: type[BaseException] | None, *rest: object) -> None:
        """Remove the bar, and log the duration of a completed loop."""
        now = time.monotonic()
        if self._bar is not None:
            self._bar.stop()
        if error is None and self._done > self._begun:
            seconds = f"{self._done - self._begun} in {now - self._started:.1f} s"
            _log.info("%s: %s", self._what, ", ".join([seconds, *self._number_texts(now)]))

    def _rate(self, now: float) -> float:
        """Steps per second since the start of the loop."""
        return (self._done - self._begun) / max(now - self._started, 1e-9)

    def _number_texts(self, now: float) -> list[str]:
        """Numbers of the last step, and the number of steps per second, as texts."""
        figures = [f"{name} {value:.3g}" for name, value in self._figures.items()]
        return [*figures, f"{self._rate(now):.3g}/s"]


def _progress_bar() -> Progress | None:
    """Progress bar on the log's terminal, or None without a terminal, or for a silenced logger."""
    console = rich.get_console()
    if not (console.is_terminal and _log.isEnabledFor(logging.INFO)):
        return None
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=12),
        MofNCompleteColumn(),
        Remaining(compact=True),
        TextColumn("{task.fields[figures]}", style="dim"),
        console=console,
        refresh_per_second=4,  # the processor is busy with the loop itself
        transient=True,
    )
