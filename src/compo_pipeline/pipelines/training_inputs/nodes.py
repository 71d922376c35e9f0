"""What a training starts from: part of the pipelines `training` and `tuning`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from compo_pipeline.engines import PrepareSettings
from compo_pipeline.evaluation.settings import BenchmarksSettings
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.records import Caption
from compo_pipeline.tables.rows import training_rows
from compo_pipeline.training.inputs import HeldOut, TrainingInputs
from compo_pipeline.training.settings import TrainingSettings
from compo_pipeline.tuning.selection import held_out


def choose_held_out(
    valid_captions: Sequence[Caption],
    training: TrainingSettings,
    benchmarks: BenchmarksSettings,
    split: str,
    root: Path,
) -> HeldOut:
    """The rows and benchmark items that training is validated on; no item of `benchmarks` is."""
    return held_out(training.validation, valid_captions, Path(root), split, benchmarks)


def training_inputs(
    valid_captions: Sequence[Caption],
    manifest: Mapping[str, Any],
    views: Path,
    counterfactual_images: Path,
    model: ModelSettings,
    training: TrainingSettings,
    held_out: HeldOut,
    split: str,
    root: Path,
    seed: int,
    resume: str,
    features: str,
    prepare: PrepareSettings,
) -> TrainingInputs:
    """The inputs of a training from tables and parameters."""
    return TrainingInputs(
        captions=training_rows(valid_captions, split),
        data_hash=str(manifest["data_hash"]),
        views=views,
        root=Path(root),
        model=model,
        settings=training,
        seed=seed,
        resume=Path(resume),
        counterfactual_images=counterfactual_images,
        features=Path(features),
        held_out=held_out,
        prepare=prepare,
    )
