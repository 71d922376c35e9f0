"""Training state on disk: one safetensors file, written atomically, no pickle.

Randomness never needs saving: every draw is seeded from (seed, epoch, step), so weights, optimiser
moments and the step number are the whole state.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

_BEST = "best/"


def _optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    state = optimizer.state_dict()["state"]
    return {
        f"optimizer/{index}/{name}": value if isinstance(value, Tensor) else torch.tensor(value)
        for index, slots in state.items()
        for name, value in slots.items()
    }


def save(
    path: Path,
    modules: Mapping[str, nn.Module],
    optimizer: torch.optim.Optimizer,
    progress: Mapping[str, Any],
    best: Mapping[str, Tensor] | None = None,
) -> None:
    """Write modules, optimiser and progress; a kill at any moment leaves the old file or the new.

    Args:
        path: the file, `*.safetensors`.
        modules: by name; only tensors that the optimiser trains, or buffers, change in training,
            but all are written, so that the file stands alone.
        optimizer: its moments; settings such as the learning rate follow from the step.
        progress: JSON-ready (step, fingerprint, history, ...).
        best: weights of the best validation so far, in the same file so that they always belong
            to the progress beside them.
    """
    tensors = _optimizer_tensors(optimizer)
    for name, module in modules.items():
        for key, value in module.state_dict().items():
            tensors[f"{name}/{key}"] = value
    tensors |= {f"{_BEST}{key}": value for key, value in (best or {}).items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    # Copies: safetensors refuses tensors that share memory.
    copies = {
        key: value.detach().clone(memory_format=torch.contiguous_format)
        for key, value in tensors.items()
    }
    save_file(copies, partial, metadata={"progress": json.dumps(dict(progress))})
    partial.replace(path)


def read_best(path: Path) -> dict[str, Tensor]:
    """The weights that `save` got as `best`, by name; empty where it got none."""
    with safe_open(path, framework="pt") as file:
        names = [key for key in file.keys() if key.startswith(_BEST)]  # noqa: SIM118
        return {key.removeprefix(_BEST): file.get_tensor(key) for key in names}


def read_progress(path: Path) -> dict[str, Any] | None:
    """What `save` recorded as progress, None where there is no file."""
    if not path.exists():
        return None
    with safe_open(path, framework="pt") as file:
        progress: dict[str, Any] = json.loads(file.metadata()["progress"])
        return progress


def restore(
    path: Path, modules: Mapping[str, nn.Module], optimizer: torch.optim.Optimizer
) -> dict[str, Any]:
    """Load what `save` wrote into the same modules and optimiser; returns the progress."""
    with safe_open(path, framework="pt") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        progress: dict[str, Any] = json.loads(file.metadata()["progress"])
    for name, module in modules.items():
        prefix = f"{name}/"
        module.load_state_dict(
            {key.removeprefix(prefix): v for key, v in tensors.items() if key.startswith(prefix)}
        )
    slots: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        if key.startswith("optimizer/"):
            _, index, name = key.split("/")
            slots.setdefault(int(index), {})[name] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": slots, "param_groups": groups})
    _lay_out_like_parameters(optimizer)
    return progress


def _lay_out_like_parameters(optimizer: torch.optim.Optimizer) -> None:
    """Give each moment its parameter's order in memory (channels last or not): torch's fused
    kernels pair them in that order, not by index, and would mix them up without an error.
    """
    for parameter, slots in optimizer.state.items():
        for name, value in slots.items():
            if value.shape == parameter.shape:
                slots[name] = torch.empty_like(parameter).copy_(value)
