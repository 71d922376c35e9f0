"""How several processes share one machine."""

from __future__ import annotations

import os

import torch

# Each process holds a model and the features of all pictures.
MOST = 4


def natural(device: torch.device) -> int:
    """How many processes make the most of a machine: one where a GPU trains, else one a core."""
    return 1 if device.type == "cuda" else min(MOST, _cores())


def share(processes: int) -> None:
    """Give this process its share of the processor: small models gain little from more threads."""
    torch.set_num_threads(max(1, _cores() // processes))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
