"""A queue of exchanges that one thread works off, bounded so that no request waits for it."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from compo_pipeline.serving.exchange import Exchange

_ROW = 1000  # bytes of a row beside its cells and vectors
_NICE = 10


@dataclass(frozen=True)
class QueuedExchange:
    """An answered request in a queue, without the table of its output, to save memory.

    Attributes:
        exchange: request and answer.
        rows: number of rows of its table.
        size: bytes of its cells, candidates and vectors.
        time: when it was answered.
    """

    exchange: Exchange
    rows: int
    size: int
    time: datetime = field(default_factory=lambda: datetime.now(UTC))

    @classmethod
    def from_exchange(cls, exchange: Exchange) -> QueuedExchange:
        """Queue entry of an answered exchange, without the output, with time and size."""
        answered, table = exchange.answered, exchange.table
        assert answered is not None and table is not None
        arrays = answered.images, answered.texts, answered.similarities
        cells = [*(cell for name in table for cell in table[name]), *(answered.candidates or ())]
        size = sum(map(len, cells)) + sum(each.nbytes for each in arrays if each is not None)
        without = replace(exchange, answered=replace(answered, output=answered.output[[]]))
        return cls(without, len(table), size + _ROW * len(table))


class ExchangeQueue:
    """Thread-safe first-in, first-out queue of exchanges, limited in bytes."""

    def __init__(self, most: int) -> None:
        """Create a queue of at most so many bytes."""
        self._most, self._bytes = most, 0
        self._queue: deque[QueuedExchange] = deque()
        self._changed = threading.Condition()
        self.ended = False

    def put(self, queued: QueuedExchange) -> bool:
        """Add an exchange to the queue; False if it is full."""
        with self._changed:
            if self._bytes + queued.size > self._most:
                return False
            self._queue.append(queued)
            self._bytes += queued.size
            self._changed.notify()
            return True

    def get(self, until: float) -> QueuedExchange | None:
        """Remove and return the oldest exchange; None if none arrives before the given time."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self.ended, until - time.monotonic())
            if not self._queue:
                return None
            queued = self._queue.popleft()
            self._bytes -= queued.size
            return queued

    def end(self) -> None:
        """Mark the queue as ended, and wake the thread that waits for an exchange."""
        with self._changed:
            self.ended = True
            self._changed.notify()


def lower_priority() -> None:
    """Lower the current thread's CPU priority (on Linux) below that of request threads."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
