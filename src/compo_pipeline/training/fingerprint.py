"""The fingerprint of a training: everything that determines its weights."""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from compo_pipeline.core.hashing import file_hash, hash_of
from compo_pipeline.core.seeding import digest
from compo_pipeline.core.settings import PlainError, leaves, speed_paths
from compo_pipeline.methods.contract import Method
from compo_pipeline.models.loading import load
from compo_pipeline.training import checkpoint
from compo_pipeline.training.inputs import TrainingInputs
from compo_pipeline.training.settings import TrainingSettings

log = logging.getLogger(__name__)

TRAINING = 1
"""Version of training: raised where equal inputs and settings give other weights than before."""

# What `auto` may be on this machine and not on the one where a state was begun.
_RESOLVED = ("training.device", "training.precision")


class FingerprintError(PlainError, RuntimeError):
    """Error that the state on disk belongs to another configuration."""


def code_version(method: type[Method]) -> str:
    """Version of the code that trains a method: `TRAINING`, and a hash of the method's own file."""
    return f"{TRAINING} {file_hash(Path(inspect.getfile(method)))[:16]}"


def fingerprint_of(
    inputs: TrainingInputs, method: Method, *, base: str | None = None, steps: int | None = None
) -> dict[str, Any]:
    """Settings, seed and input hashes that determine a training's weights, ready for JSON.

    Args:
        inputs: data, base model and recipe.
        method: the method, or the control of one.
        base: fingerprint of the base model; None reads its weights.
        steps: number of steps, as in `train`.
    """
    settings, compute = inputs.settings, inputs.compute
    # The mixture of weights is made of the trained ones afterwards.
    left_out = {*speed_paths(TrainingSettings), "wise_ft"}
    recipe = {name: value for name, value in asdict(settings).items() if name not in left_out}
    recipe |= {"device": compute.device.type, "precision": compute.precision}
    if not settings.selects:
        del recipe["validation"]  # it only measures
    if settings.early_stopping.patience is None:
        recipe["early_stopping"] = None
    views = sorted(inputs.views.glob("*.parquet"))
    found = {
        "method": method.name,
        "objective": asdict(method.objective),
        "code": code_version(type(method)),
        "training": recipe,
        "seed": inputs.seed,
        "data": inputs.data_hash,
        "views": hash_of([(file.name, file_hash(file)) for file in views]),
        "model": base or load(inputs.model).fingerprint,
    }
    if settings.selects:
        rows = (f"{row.sample_id} {row.sentences[0]}" for row in inputs.held_out.rows)
        found["validation"] = f"{digest(inputs.held_out.measured, *rows):016x}"
    if steps is not None:
        found["steps"] = steps
    as_stored: dict[str, Any] = json.loads(json.dumps(found))  # tuples become lists
    return as_stored


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
    """Read a state's progress dictionary if its fingerprint matches, or None to start afresh.

    Raises:
        FingerprintError: there is one of another configuration, and `overwrite` is off.
    """
    saved = checkpoint.read_progress(state)
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
