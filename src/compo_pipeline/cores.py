"""How many processor cores this process may use, and how several processes share them."""

from __future__ import annotations

import os
from functools import cache


@cache
def available() -> int:
    """Physical cores that this process may use.

    Affinity and the CPU quota of its container (cgroup v1 and v2) count; a second hardware thread
    of a core does not: matrix products gain nothing from it.
    """
    import joblib
    import psutil

    allowed: int = joblib.cpu_count()
    return min(allowed, psutil.cpu_count(logical=False) or allowed)


def use(processes: int = 1) -> None:
    """Set this process's threads: its share of the cores, one of `processes` that compute at once.

    OMP_NUM_THREADS, where the user has set it, is left as it is.
    """
    import torch

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, available() // processes))
