"""What a training starts from: part of the pipelines `training` and `tuning`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from compo_pipeline.benchmarks.settings import BenchmarksSettings
from compo_pipeline.configuration.places import PathSettings
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.storage.records import Caption, Foil
from compo_pipeline.storage.tables import Splits, held_out_note, training_rows
from compo_pipeline.training.inputs import HeldOut, TrainingData, TrainingInputs, TrainingRecipe
from compo_pipeline.training.settings import TrainingSettings
from compo_pipeline.tuning.selection import held_out


def choose_held_out(
    valid_captions: Sequence[Caption],
    training: TrainingSettings,
    benchmarks: BenchmarksSettings,
    split: Splits,
    root: Path,
    foils: Sequence[Foil],
) -> HeldOut:
    """Held-out rows and benchmark items on which training is validated.

    No item of `benchmarks` is one.
    """
    return held_out(training.validation, valid_captions, Path(root), split, benchmarks, foils)


def gather_data(
    valid_captions: Sequence[Caption],
    split: Splits,
    manifest: Mapping[str, Any],
    views: Path,
    counterfactual_images: Path,
    root: Path,
) -> TrainingData:
    """Training rows with their views, counterfactual images and image folder."""
    return TrainingData(
        captions=training_rows(valid_captions, split),
        data_hash=str(manifest["data_hash"]),
        views=views,
        counterfactual_images=counterfactual_images,
        root=Path(root),
        rows=held_out_note(valid_captions, split),
    )


def choose_recipe(model: ModelSettings, training: TrainingSettings, seed: int) -> TrainingRecipe:
    """Training recipe: base model, training settings and seed."""
    return TrainingRecipe(model, training, seed)


def collect_inputs(
    data: TrainingData, recipe: TrainingRecipe, held_out: HeldOut, paths: PathSettings
) -> TrainingInputs:
    """Inputs that the trainings of a method and its control share."""
    return TrainingInputs(
        captions=data.captions,
        data_hash=data.data_hash,
        views=data.views,
        root=data.root,
        model=recipe.model,
        settings=recipe.settings,
        seed=recipe.seed,
        resume=Path(paths.resume),
        counterfactual_images=data.counterfactual_images,
        features=Path(paths.features),
        held_out=held_out,
        rows=data.rows,
    )
