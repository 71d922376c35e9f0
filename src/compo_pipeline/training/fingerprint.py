"""What decides a run's outcome, and whether a state on disk belongs to it."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from click import ClickException

import compo_pipeline
from compo_pipeline.compute import Compute
from compo_pipeline.training import checkpoint
from compo_pipeline.training.settings import INCIDENTAL, TrainingSettings

log = logging.getLogger(__name__)

# Code that decides the weights that come out of training. What views hold is in their own hash.
CODE = (
    "compute.py",
    "images/composites.py",
    "images/crops.py",
    "images/decoding.py",
    "losses",
    "methods",
    "models",
    "training",
    "records.py",
    "seeding.py",
)
# What `auto` may be on this machine and not on the one where a state was begun.
_RESOLVED = ("training.device", "training.precision")


class FingerprintError(ClickException, RuntimeError):
    """The state on disk belongs to another configuration."""


def of_code(*more: str) -> str:
    """Digest of the source files that training goes through, and of further rooms."""
    package = Path(compo_pipeline.__file__).parent
    places = [package / name for name in (*CODE, *more)]
    return _digest([file for place in places for file in (sorted(place.rglob("*.py")) or [place])])


def of_folder(folder: Path) -> str:
    """Digest of all files of a folder."""
    return _digest(sorted(file for file in folder.rglob("*") if file.is_file()))


def _digest(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def make(
    method: str,
    objective: Any,
    settings: TrainingSettings,
    compute: Compute,
    seed: int,
    inputs: Mapping[str, str],
) -> dict[str, Any]:
    """The fingerprint of a run, JSON-ready.

    Args:
        method: its name.
        objective: the method's frozen settings.
        settings: the recipe.
        compute: what its device and precision are on this machine.
        seed: of the order of rows.
        inputs: hashes by name, of what the run starts from: data, views, base weights, code.
    """
    recipe = {key: value for key, value in asdict(settings).items() if key not in INCIDENTAL}
    recipe |= {"device": compute.device.type, "precision": compute.precision}
    if settings.selects:
        del recipe["validation"]["benchmarks"]  # a place; what it holds is among the inputs
    else:
        del recipe["validation"]  # it only measures
    if settings.early_stopping.patience is None:
        recipe["early_stopping"] = None
    return {
        "method": method,
        "objective": _plain(asdict(objective)),
        "training": _plain(recipe),
        "seed": seed,
        **inputs,
    }


def _plain(value: Any) -> Any:
    """Tuples as lists, as JSON gives them back."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, tuple | list) else value


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def check(state: Path, fingerprint: Mapping[str, Any], *, overwrite: bool) -> dict[str, Any] | None:
    """What the state to resume from recorded, None where a run starts afresh.

    Raises:
        FingerprintError: there is one of another configuration, and `overwrite` is off.
    """
    saved = checkpoint.read_progress(state)
    if saved is None:
        return None
    old, new = dict(_flat(saved["fingerprint"])), dict(_flat(fingerprint))
    differing = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
    if not differing:
        return saved
    if overwrite:
        log.warning(
            "%s is of another configuration (%s): starting afresh.", state, ", ".join(differing)
        )
        return None
    shown = ", ".join(f"{key}: {old.get(key)} -> {new.get(key)}" for key in differing)
    first = ",".join(f"{key}={old.get(key)}" for key in _RESOLVED if key in differing)
    same = f"Go on as it was begun with --params {first}. " if first else ""
    raise FingerprintError(
        f"{state} was begun with another configuration ({shown}). {same}Keep it and give this run "
        "a name of its own with --params variant=<name>, or start afresh with "
        "--params training.overwrite=true"
    )
