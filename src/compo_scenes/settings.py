"""Settings of the shipped models: the base model `scenes-base` and the spaCy model compo_en."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from compo_pipeline.core.settings import SPEED, settings


@dataclass(frozen=True, slots=True)
class TowerRecipe:
    """How the base model's image tower was trained."""

    steps: int = 2400
    batch_size: int = 128
    lr: float = 1.5e-3  # peak learning rate of AdamW
    weight_decay: float = 0.03
    warmup: int = 80  # steps
    composites: float = 0.3  # share of images that are composites of two scenes
    workers: int = 1  # processes that render

    def rate(self, step: int) -> float:
        """Learning rate at a step: warm-up, a plateau, then cosine decay."""
        falling = 0.625 * (1 + math.cos(math.pi * step / self.steps))
        return self.lr * min(1.0, (step + 1) / max(1, self.warmup)) * min(1.0, falling)


@dataclass(frozen=True, slots=True)
class BaseRecipe:
    """How the base model's text tower and image projection were trained."""

    scenes: int = 16000  # each may have a near-duplicate with its things' places exchanged
    steps: int = 1200
    batch_size: int = 256  # captions
    lr: float = 1.5e-3  # peak rate of AdamW, warm-up of 100 steps, cosine
    weight_decay: float = 0.03
    readout_weight: float = 0.6  # of the losses that keep binding and places decodable
    duplicates: float = 0.35  # share of scenes whose near-duplicate joins the same batch
    # Weights of a single thing, keywords, a full sentence, a detail, a thing and its place.
    mix: tuple[float, ...] = (0.1, 0.3, 0.45, 0.05, 0.1)

    def rate(self, step: int) -> float:
        """Learning rate at a step: warm-up, then cosine decay."""
        falling = 0.5 * (1 + math.cos(math.pi * step / self.steps))
        return self.lr * min(1.0, (step + 1) / 100) * falling


@settings
class PretrainingSettings:
    """Settings of the training of the shipped base model `scenes-base`."""

    device: Annotated[str, SPEED] = "auto"
    """Device of the pretraining: auto, cpu, cuda, cuda:<n> or mps. auto is CUDA if there is a GPU,
    else the CPU."""


@settings
class LanguageModelSettings:
    """Settings of the training of compo_en, the shipped spaCy pipeline."""

    treebank: str = "data/01_raw/ud_english_ewt"
    """Folder with *-ud-{train,dev,test}.conllu, such as a release of UD_English-EWT."""
