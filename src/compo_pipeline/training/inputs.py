"""Inputs of a training, and its fingerprint: everything that determines its weights."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from compo_pipeline.core.compute import Compute, resolve
from compo_pipeline.core.hashing import file_hash, hash_of
from compo_pipeline.core.records import Caption
from compo_pipeline.core.seeding import digest
from compo_pipeline.core.settings import speed_keys
from compo_pipeline.methods.contract import Method
from compo_pipeline.models.loading import LoadedModel, load
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.training.settings import TrainingSettings

TRAINING = 1
"""Version of training: raised where equal inputs and settings give other weights than before."""


@dataclass(frozen=True)
class HeldOut:
    """Held-out rows and metric of validation during training, empty without validation."""

    rows: Sequence[Caption] = ()
    """Captions of distinct images, in the order in which they form batches."""

    measure: Callable[[LoadedModel], Mapping[str, float]] | None = None
    """Figures of a model in eval mode, by name. None measures only the loss."""

    measured: str = ""
    """Hash of everything except the model that the figures depend on."""


@dataclass(frozen=True)
class TrainingInputs:
    """Data, base model and settings of a training, the same for a method and its control."""

    captions: Sequence[Caption]
    """The rows that train."""

    data_hash: str
    """Hash of all files of the data."""

    views: Path
    """Folder of the rows' views."""

    root: Path
    """Folder of their images."""

    model: ModelSettings
    """The base model."""

    settings: TrainingSettings
    """The recipe."""

    seed: int
    """Seed of the order of rows."""

    resume: Path
    """Folder of the states to resume from."""

    counterfactual_images: Path | None = None
    """Folder of the images of counterfactuals, where the views show any."""

    features: Path | None = None
    """Folder where features of frozen towers are stored for other runs; None stores none."""

    held_out: HeldOut = HeldOut()
    """Held-out rows and figures, if the recipe validates."""

    rows: str | None = None
    """Note on the rows that train, if some are held out of training."""

    @property
    def compute(self) -> Compute:
        """Device and precision on this machine."""
        return resolve(self.settings.device, self.settings.precision, key="training")

    def state(self, name: str) -> Path:
        """File of the state of a training with this name."""
        return self.resume / f"{name}.safetensors"


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
        steps: number of steps, if not all.
    """
    settings, compute = inputs.settings, inputs.compute
    # The mixture of weights is made of the trained ones afterwards.
    left_out = {*speed_keys(TrainingSettings), "wise_ft"}
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
    if files := method.files:
        found["files"] = dict(files)
    if steps is not None:
        found["steps"] = steps
    as_stored: dict[str, Any] = json.loads(json.dumps(found))  # tuples become lists
    return as_stored
