"""Ctrl-C and SIGTERM: a training is cut short, a decision over trials is finished first."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Notes the first such signal and raises KeyboardInterrupt only where that is allowed.

    Further signals change nothing: on a terminal a worker is told twice. Outside of the main
    thread, where Python handles no signals, they stay as they are.
    """

    def __init__(self) -> None:
        self.wanted = False
        self._allowed = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        """Listen."""
        if threading.current_thread() is threading.main_thread():
            self._before = {each: signal.signal(each, self._note) for each in SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        """Leave the signals to whoever had them before."""
        for each, handler in self._before.items():
            signal.signal(each, handler)

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Within the block a signal, also one that came before, raises KeyboardInterrupt."""
        self._allowed = True
        try:
            if self.wanted:
                raise KeyboardInterrupt
            yield
        finally:
            self._allowed = False

    def _note(self, number: int, frame: FrameType | None) -> None:
        first, self.wanted = not self.wanted, True
        if first and self._allowed:
            raise KeyboardInterrupt
