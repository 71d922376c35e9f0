"""What a training starts from; importing this module loads no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compo_pipeline.configuration import parse
from compo_pipeline.engines import KEY, LOCAL, PrepareSettings
from compo_pipeline.records import Caption
from compo_pipeline.tables.rows import training_rows

if TYPE_CHECKING:
    from compo_pipeline.models.settings import ModelSettings
    from compo_pipeline.training.settings import TrainingSettings
    from compo_pipeline.training.validation import HeldOut

# Inputs of a node that calls `training_inputs`.
NODE_INPUTS = {
    "valid_captions": "valid_captions",
    "manifest": "manifest",
    "views": "views",
    "counterfactual_images": "counterfactual_images",
    "model": "params:model",
    "training": "params:training",
    "benchmarks": "params:benchmarks",
    "split": "params:views.split",
    "root": "params:data.root",
    "seed": "params:seed",
    "paths": "params:paths",
    "prepare": "params:prepare",
}


@dataclass(frozen=True)
class TrainingInputs:
    """Data, base model and recipe of a training: the same for a method and its control."""

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
    """Of the order of rows."""

    resume: Path
    """Folder of the states to resume from."""

    counterfactual_images: Path | None = None
    """Folder of the images of counterfactuals, where the views show any."""

    features: Path | None = None
    """Folder where features of frozen towers are stored for other runs; None stores none."""

    held_out: HeldOut | None = None
    """Rows and items of validation, where the recipe validates."""

    prepare: PrepareSettings = LOCAL
    """What embeds images before training."""


def training_inputs(
    valid_captions: Sequence[Caption],
    manifest: Mapping[str, Any],
    views: Path,
    counterfactual_images: Path,
    model: Mapping[str, Any],
    training: Mapping[str, Any],
    benchmarks: Mapping[str, Any],
    split: str,
    root: str,
    seed: int,
    paths: Mapping[str, str],
    prepare: Mapping[str, Any],
) -> TrainingInputs:
    """The inputs of a training from tables and parameters; no item of `benchmarks` validates.

    Raises:
        SettingsError: a setting cannot be used.
    """
    from compo_pipeline.evaluation.settings import BenchmarksSettings
    from compo_pipeline.models.settings import ModelSettings
    from compo_pipeline.training.settings import TrainingSettings
    from compo_pipeline.training.validation import held_out

    recipe = parse(TrainingSettings, training, "training")
    reported = parse(BenchmarksSettings, benchmarks, "benchmarks")
    return TrainingInputs(
        captions=training_rows(valid_captions, split),
        data_hash=str(manifest["data_hash"]),
        views=views,
        root=Path(root),
        model=parse(ModelSettings, model, "model"),
        settings=recipe,
        seed=seed,
        resume=Path(paths["resume"]),
        counterfactual_images=counterfactual_images,
        features=Path(paths["features"]),
        held_out=held_out(recipe.validation, valid_captions, Path(root), split, reported),
        prepare=parse(PrepareSettings, prepare, KEY),
    )
