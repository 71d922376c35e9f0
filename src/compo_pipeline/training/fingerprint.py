"""The fingerprint of a training: everything that determines its weights."""

from __future__ import annotations

import hashlib
import inspect
import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from click import ClickException

import compo_pipeline
from compo_pipeline.compute import Compute
from compo_pipeline.methods.contract import Method
from compo_pipeline.training import checkpoint
from compo_pipeline.training.settings import NOT_FINGERPRINTED, TrainingSettings

log = logging.getLogger(__name__)

# Code that determines the trained weights. What views hold is in their own hash.
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
    "tables.py",
)
# What `auto` may be on this machine and not on the one where a state was begun.
_RESOLVED = ("training.device", "training.precision")


class FingerprintError(ClickException, RuntimeError):
    """The state on disk belongs to another configuration."""


def code_fingerprint(*more: str) -> str:
    """Hash of the source files that training uses, and of further packages."""
    package = Path(compo_pipeline.__file__).parent
    places = [package / name for name in (*CODE, *more)]
    return _hash([file for place in places for file in (sorted(place.rglob("*.py")) or [place])])


def folder_fingerprint(folder: Path) -> str:
    """Hash of all files of a folder."""
    return _hash(sorted(file for file in folder.rglob("*") if file.is_file()))


def _hash(files: list[Path]) -> str:
    hashed = hashlib.sha256()
    for file in files:
        hashed.update(file.name.encode())
        hashed.update(hashlib.sha256(file.read_bytes()).digest())
    return hashed.hexdigest()


def run_fingerprint(
    method: Method,
    settings: TrainingSettings,
    compute: Compute,
    seed: int,
    inputs: Mapping[str, str],
) -> dict[str, Any]:
    """The fingerprint of a run, JSON-ready.

    Args:
        method: its name, objective and, for one of another package, code.
        settings: the recipe.
        compute: device and precision on this machine.
        seed: of the order of rows.
        inputs: hashes by name, of what the run starts from: data, views, base weights, code.
    """
    recipe = {k: value for k, value in asdict(settings).items() if k not in NOT_FINGERPRINTED}
    recipe |= {"device": compute.device.type, "precision": compute.precision}
    if settings.selects:
        del recipe["validation"]["benchmarks"]  # a path; the files are among the inputs
    else:
        del recipe["validation"]  # it only measures
    if settings.early_stopping.patience is None:
        recipe["early_stopping"] = None
    found = {
        "method": method.name,
        "objective": _plain(asdict(method.objective)),
        "training": _plain(recipe),
        "seed": seed,
        **inputs,
    }
    source = Path(inspect.getfile(type(method)))
    if Path(compo_pipeline.__file__).parent not in source.parents:
        found["method_code"] = _hash([source])
    return found


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
