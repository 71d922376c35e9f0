"""Settings of pretraining, all of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from compo_pipeline.artefacts.image_tower import TowerSettings
from compo_pipeline.artefacts.text_tower import BaseSettings


@dataclass(frozen=True)
class PretrainingSettings:
    """How `scenes-base` is made.

    Attributes:
        seed: of scenes, captions and initial weights.
        device: auto, cpu, cuda, cuda:<n> or mps; auto is CUDA where there is a GPU, else the CPU.
        precision: as of training.
        tower: the image tower.
        base: the text tower and the projection.
        probed: training scenes that linear probes are fitted on, and unseen ones they are judged
            on.
    """

    seed: int = 0
    device: str = "auto"
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    tower: TowerSettings = field(default_factory=TowerSettings)
    base: BaseSettings = field(default_factory=BaseSettings)
    probed: int = 3000
