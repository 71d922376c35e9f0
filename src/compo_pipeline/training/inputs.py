"""Inputs of a training.

Importing this module loads no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from compo_pipeline.core.records import Caption
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.training.settings import TrainingSettings

if TYPE_CHECKING:
    from compo_pipeline.core.compute import Compute
    from compo_pipeline.models.loading import LoadedModel


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
        from compo_pipeline.core.compute import resolve

        return resolve(self.settings.device, self.settings.precision, key="training")
