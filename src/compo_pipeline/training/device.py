"""Where and how precisely to compute."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from compo_pipeline.configuration import SettingsError


def choose(name: str, *, key: str) -> torch.device:
    """The device of a configured name; `auto` takes CUDA where there is one.

    Args:
        name: auto, cpu, cuda or cuda:<n>.
        key: where the name is configured, for the error.

    Raises:
        SettingsError: there is no such device here.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        reason = (str(error).splitlines() or ["no reason given"])[0]
        raise SettingsError(
            f"{key}: '{name}' cannot be used here ({reason}); allowed: auto, cpu, cuda, cuda:<n>"
        ) from None


def moved(batch: Any, device: torch.device) -> Any:
    """A NamedTuple of tensors on the device."""
    return type(batch)(*[tensor.to(device, non_blocking=True) for tensor in batch])


@contextmanager
def autocast(device: torch.device, precision: str) -> Iterator[None]:
    """bf16 autocast where asked for. On the CPU attention goes by plain matrix products, which
    beat its fused kernel at the sizes of text towers.
    """
    with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
        if device.type == "cpu":
            with sdpa_kernel(SDPBackend.MATH):
                yield
        else:
            yield
