"""The state of a training: its progress, and its file on disk.

The file is one safetensors file, written atomically, with a hash, without pickle; the state
before it is stored beside it. Randomness need not be saved: every draw is seeded from (seed, epoch,
step), so weights, optimiser moments and the step number are the whole state.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from compo_pipeline.core.files import DamagedFileError, atomic_file
from compo_pipeline.core.settings import PlainError, leaves
from compo_pipeline.core.stores import read_tensors, write_tensors

_BEST = "best/"
_NAMED = 3  # tensors that an error names
# What `auto` may be on this machine and not on the one where a state was begun.
_RESOLVED = ("training.device", "training.precision")

log = logging.getLogger(__name__)

Point = dict[str, float]


class TrainingError(PlainError, RuntimeError):
    """Error that training cannot continue.

    The last saved state stays valid.
    """


class FingerprintError(PlainError, RuntimeError):
    """Error that the state on disk belongs to another configuration."""


@dataclass
class Progress:
    """Progress of a training run, saved with the weights: steps, loss curves and counts."""

    step: int = 0
    """Steps done."""

    curve: list[Point] = field(default_factory=list)
    """Points of the loss curves."""

    counts: Counter[str] = field(default_factory=Counter)
    """Counts that batches reported (rows, rows without a negative, truncated texts, ...)."""

    finished: bool = False
    """No step is left, or early stopping ended the run."""

    sums: Counter[str] = field(default_factory=Counter)
    """Losses since the last point, summed."""

    times: Counter[str] = field(default_factory=Counter)
    """Number of steps in each sum."""

    def add_step(self, losses: Mapping[str, float], counts: Mapping[str, int]) -> None:
        """Add the losses and counts of one training step."""
        self.step += 1
        self.counts.update(counts)
        self.sums.update(losses)
        self.times.update(losses.keys())

    def add_point(self, **others: float) -> Point:
        """Add and return a new point of the curves: mean losses since the point before it."""
        means = {name: self.sums[name] / self.times[name] for name in self.sums}
        self.sums.clear()
        self.times.clear()
        self.curve.append({"step": self.step, **others, **means})
        return self.curve[-1]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Progress:
        """The progress from its fields as JSON holds them.

        Sums of an unfinished window are among them, so that curves resume exactly.
        """
        counters = {name: Counter(values[name]) for name in ("counts", "sums", "times")}
        return cls(**{**values, "curve": list(values["curve"]), **counters})


def save(
    path: Path,
    modules: Mapping[str, nn.Module],
    optimizer: torch.optim.Optimizer,
    progress: Mapping[str, Any],
    best: Mapping[str, Tensor] | None = None,
    *,
    step: int,
    advice: str = "",
) -> None:
    """Write modules, optimiser and progress atomically to one file, and keep the former file.

    It stays at the path that `previous_state_file` gives.

    A state that is not finite is refused.

    Args:
        path: the file, `*.safetensors`.
        modules: modules by name. Only tensors that the optimiser trains, and buffers, change in
            training, but all are written, so that the file is complete.
        optimizer: optimiser, whose moments are written. Settings such as the learning rate follow
            from the step.
        progress: JSON-ready (step, fingerprint, history, ...).
        best: weights of the best validation so far, in the same file so that they always belong
            to the progress beside them.
        step: number of steps done.
        advice: advice on which keys to change, for the error.

    Raises:
        TrainingError: a tensor is not finite; the file is as it was. Waits for the device once.
    """
    tensors = tensors_of(modules, optimizer)
    tensors |= {f"{_BEST}{key}": value for key, value in (best or {}).items()}
    if wrong := _non_finite(tensors):
        more = f" and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
        raise TrainingError(
            f"the state after {step} steps is not finite ({', '.join(wrong[:_NAMED])}{more}); "
            f"{resume_hint(path)}. {advice}"
        )
    # Copies: safetensors refuses tensors that share memory.
    copies = {
        key: value.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for key, value in tensors.items()
    }
    with atomic_file(path) as file:
        write_tensors(file, copies, {"progress": json.dumps(dict(progress)), "step": str(step)})
        if path.exists():
            path.replace(previous_state_file(path))


def tensors_of(
    modules: Mapping[str, nn.Module], optimizer: torch.optim.Optimizer
) -> dict[str, Tensor]:
    """All tensors of modules and optimiser, by their names in a state file."""
    tensors = {
        f"optimizer/{index}/{name}": value if isinstance(value, Tensor) else torch.tensor(value)
        for index, slots in optimizer.state_dict()["state"].items()
        for name, value in slots.items()
    }
    for name, module in modules.items():
        tensors |= {f"{name}/{key}": value for key, value in module.state_dict().items()}
    return tensors


def previous_state_file(path: Path) -> Path:
    """Path of the file with the previous state, beside the file of the current one."""
    return path.with_suffix(".before.safetensors")


def remove_state(path: Path) -> None:
    """Delete the file of a training state, and the file of the previous state."""
    for file in (path, previous_state_file(path)):
        file.unlink(missing_ok=True)


def _non_finite(tensors: Mapping[str, Tensor]) -> list[str]:
    """Names of the tensors with infinite or NaN values, with one transfer from the device."""
    device = next(iter(tensors.values())).device
    finite = [value.isfinite().all().to(device, non_blocking=True) for value in tensors.values()]
    return [
        name for name, good in zip(tensors, torch.stack(finite).tolist(), strict=True) if not good
    ]


def resume_hint(path: Path | None) -> str:
    """Text for an error that says from which stored state training can resume.

    None is the path of a training that saves no state.
    """
    if path is None or not path.exists():
        return "no state is stored"
    with safe_open(path, framework="pt") as file:
        step = file.metadata()["step"]
    return f"the same command resumes from the state after {step} steps, stored in {path}"


def read_progress(path: Path) -> dict[str, Any] | None:
    """The progress dictionary of a state file, or None without a state.

    A damaged state is deleted: the one before it takes its place.
    """
    if not path.exists() and previous_state_file(path).exists():
        previous_state_file(path).replace(path)
    if not path.exists():
        return None
    try:
        metadata, _ = read_tensors(path)
    except DamagedFileError as error:
        path.unlink()
        earlier = read_progress(path)
        follows = "starting afresh" if earlier is None else "going on from the state before it"
        log.warning("%s; %s.", error.message, follows)
        return earlier
    progress: dict[str, Any] = json.loads(metadata["progress"])
    return progress


def restore(
    path: Path, modules: Mapping[str, nn.Module], optimizer: torch.optim.Optimizer
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Load a state file into modules and optimiser.

    Returns its progress dictionary, and the weights of the best validation, empty if there are
    none.
    """
    metadata, tensors = read_tensors(path)
    load_tensors(tensors, modules, optimizer)
    best = {key.removeprefix(_BEST): v for key, v in tensors.items() if key.startswith(_BEST)}
    return json.loads(metadata["progress"]), best


def load_tensors(
    tensors: Mapping[str, Tensor],
    modules: Mapping[str, nn.Module],
    optimizer: torch.optim.Optimizer,
) -> None:
    """Load tensors, named as `tensors_of` names them, into modules and optimiser."""
    load_weights(tensors, modules)
    slots: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        if key.startswith("optimizer/"):
            _, index, name = key.split("/")
            slots.setdefault(int(index), {})[name] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": slots, "param_groups": groups})
    _match_memory_layout(optimizer)


def load_weights(tensors: Mapping[str, Tensor], modules: Mapping[str, nn.Module]) -> None:
    """Load tensors, named as `tensors_of` names them, into modules.

    It ignores the optimiser's.
    """
    for name, module in modules.items():
        prefix = f"{name}/"
        module.load_state_dict(
            {key.removeprefix(prefix): v for key, v in tensors.items() if key.startswith(prefix)}
        )


def _match_memory_layout(optimizer: torch.optim.Optimizer) -> None:
    """Give each optimiser moment the memory format of its parameter (such as channels last).

    Torch's fused kernels pair them in the order in memory, not by index, and would mix them up
    without an error.
    """
    for parameter, slots in optimizer.state.items():
        for name, value in slots.items():
            if value.shape == parameter.shape:
                slots[name] = torch.empty_like(parameter).copy_(value)


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Both values of each dotted key in which two fingerprints differ."""
    one, other = dict(leaves(old)), dict(leaves(new))
    both = {key: (one.get(key), other.get(key)) for key in sorted(one.keys() | other.keys())}
    return {key: (first, second) for key, (first, second) in both.items() if first != second}


def refuse_differing(found: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """Raise an error unless all processes of a training have the same fingerprint.

    Args:
        found: host and fingerprint of each process, by rank.

    Raises:
        FingerprintError: naming the host, and what differs from the first process's.
    """
    (first, expected), *others = found
    for rank, (host, given) in enumerate(others, 1):
        if differing := differences(expected, given):
            shown = ", ".join(f"{key}: {b}, not {a}" for key, (a, b) in differing.items())
            raise FingerprintError(
                f"process {rank} on {host} would train something else than process 0 on {first} "
                f"({shown}); give both hosts the same code, data, --env and --params"
            )


def read_matching_progress(
    state: Path, fingerprint: Mapping[str, Any], *, overwrite: bool
) -> dict[str, Any] | None:
    """Read a state's progress dictionary, or None if its fingerprint does not match.

    Raises:
        FingerprintError: there is one of another configuration, and `overwrite` is off.
    """
    saved = read_progress(state)
    if saved is None:
        return None
    differing = differences(saved["fingerprint"], fingerprint)
    if not differing:
        return saved
    if overwrite:
        _report_overwriting(state, ", ".join(differing))
        return None
    shown = ", ".join(f"{key}: {old} -> {new}" for key, (old, new) in differing.items())
    first = ",".join(f"{key}={differing[key][0]}" for key in _RESOLVED if key in differing)
    same = f"Go on as it was begun with --params {first}. " if first else ""
    raise FingerprintError(
        f"{state} was begun with another configuration ({shown}). {same}Keep it and give this run "
        "a name of its own with --params variant=<name>, or start afresh with "
        "--params training.overwrite=true"
    )


@cache
def _report_overwriting(state: Path, differing: str) -> None:
    """Warn, once in a process, that a state of another configuration will be overwritten.

    A run checks its state several times.
    """
    log.warning("%s is of another configuration (%s): starting afresh.", state, differing)
