"""Background worker thread with a bounded queue, for logging and shadow requests."""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from compo_pipeline.core.compute import use_one_core
from compo_pipeline.serving.exchange import Exchange

_NICE = 10
_LAST = 10  # seconds in which the thread of a server that ends is waited for


class Worker:
    """A thread of low priority that works off exchanges, and repeats a second task meanwhile.

    Attributes:
        waiting: bytes of the exchanges that wait.
    """

    def __init__(
        self,
        work: Callable[[Exchange], object],
        most: int,
        repeat: Callable[[], object] = lambda: None,
        seconds: float = 60.0,
    ) -> None:
        """Start the thread.

        Args:
            work: is called with each exchange.
            most: bytes of the exchanges that may wait.
            repeat: function that is called at an interval, and at the end.
            seconds: between two calls of `repeat`.
        """
        self._work, self._most, self._repeat, self._seconds = work, most, repeat, seconds
        self._queue: queue.Queue[Exchange | None] = queue.Queue()
        self.waiting, self._lock = 0, threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def put(self, exchange: Exchange) -> bool:
        """Queue an answered exchange without the table of its output.

        Returns False if the queue is full.
        """
        assert exchange.answered is not None
        output = exchange.answered.output
        exchange.answered = replace(exchange.answered, output=output[[]])
        with self._lock:
            if self.waiting + exchange.size > self._most:
                return False
            self.waiting += exchange.size
        self._queue.put(exchange)
        return True

    def close(self) -> None:
        """Work off the queue, and end the thread, waiting a few seconds for it."""
        self._queue.put(None)
        self._thread.join(_LAST)

    def _run(self) -> None:
        if sys.platform == "linux":
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        use_one_core()
        due, ended = time.monotonic() + self._seconds, False
        while not ended:
            try:
                exchange = self._queue.get(timeout=max(0.0, due - time.monotonic()))
            except queue.Empty:
                pass
            else:
                ended = exchange is None
                if exchange is not None:
                    self._work(exchange)
                    with self._lock:
                        self.waiting -= exchange.size
            if ended or time.monotonic() >= due:
                self._repeat()
                due = time.monotonic() + self._seconds
