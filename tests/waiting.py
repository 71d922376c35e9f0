"""Waiting for what another thread or process does."""

import time
from collections.abc import Callable

SECONDS = 420
"""A busy machine takes minutes to import MLflow's server."""


def until(happened: Callable[[], bool]) -> None:
    """Return once a condition holds; fail if it never does."""
    end = time.monotonic() + SECONDS
    while not happened():
        assert time.monotonic() < end, "took too long"
        time.sleep(0.01)
