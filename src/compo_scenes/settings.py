"""Settings of what the package ships: the base model `scenes-base` and the spaCy model compo_en."""

from __future__ import annotations

import math
from dataclasses import field
from typing import Annotated, Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from compo_pipeline.configuration.settings import SPEED, Share, settings


@settings
class TowerSettings:
    """Settings of the training of the base model's image tower."""

    steps: PositiveInt = 2400
    """optimiser steps."""
    batch_size: PositiveInt = 128
    """images a step."""
    lr: PositiveFloat = 1.5e-3
    """peak learning rate of AdamW."""
    weight_decay: NonNegativeFloat = 0.03
    """of AdamW."""
    warmup: NonNegativeInt = 80
    """steps of linear warm-up."""
    composites: Share = 0.3
    """share of images that are composites of two scenes."""
    save_every: Annotated[PositiveInt, SPEED] = 100
    """steps between checkpoints; a run continues from the last."""
    workers: Annotated[NonNegativeInt, SPEED] = 1
    """processes that render."""

    def rate(self, step: int) -> float:
        """Learning rate at a step: warm-up, a plateau, then cosine decay."""
        falling = 0.625 * (1 + math.cos(math.pi * step / self.steps))
        return self.lr * min(1.0, (step + 1) / max(1, self.warmup)) * min(1.0, falling)


@settings
class BaseSettings:
    """Settings of the training of the base model's text tower and image projection."""

    scenes: PositiveInt = 16000
    """drawn scenes; each may have a near-duplicate with its things' places exchanged."""
    steps: PositiveInt = 1200
    """optimiser steps."""
    batch_size: PositiveInt = 256
    """captions a step."""
    lr: PositiveFloat = 1.5e-3
    """peak rate of AdamW, warm-up of 100 steps, cosine."""
    weight_decay: NonNegativeFloat = 0.03
    """of AdamW."""
    readout_weight: NonNegativeFloat = 0.6
    """of the losses that keep binding and places decodable."""
    duplicates: Share = 0.35
    """share of scenes whose near-duplicate joins the same batch."""
    mix: tuple[Share, Share, Share, Share, Share] = (0.1, 0.3, 0.45, 0.05, 0.1)
    """weights of a single thing, keywords, a full sentence, a detail, a thing and its place."""

    def rate(self, step: int) -> float:
        """Learning rate at a step: warm-up, then cosine decay."""
        falling = 0.5 * (1 + math.cos(math.pi * step / self.steps))
        return self.lr * min(1.0, (step + 1) / 100) * falling


@settings
class PretrainingSettings:
    """Settings of the training of the shipped base model `scenes-base`."""

    seed: int = 0
    """of scenes, captions and initial weights."""
    device: Annotated[str, SPEED] = "auto"
    """auto, cpu, cuda, cuda:<n> or mps; auto is CUDA where there is a GPU, else the CPU."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """as of training."""
    tower: TowerSettings = field(default_factory=TowerSettings)
    """the image tower."""
    base: BaseSettings = field(default_factory=BaseSettings)
    """the text tower and the projection."""
    probed: PositiveInt = 3000
    """training scenes that linear probes are fitted on, and unseen ones that they are scored on."""


@settings
class LanguageModelSettings:
    """Settings of the training of compo_en, the shipped spaCy pipeline."""

    treebank: str = "data/01_raw/ud_english_ewt"
    """Folder with *-ud-{train,dev,test}.conllu, such as a release of UD_English-EWT."""
    steps: PositiveInt = 4000
    """optimiser steps; some nine minutes for 4,000 on one core."""
    evaluate_every: PositiveInt = 500
    """steps between two evaluations on the development set."""
    seed: int = 0
    """of initial weights, order and augmentation."""
    lower_case: Share = 0.3
    """share of training sentences in lower case."""
    caption_words: Share = 0.5
    """share of training sentences in which lexicon words replace others."""
    replaced: Share = 0.4
    """share of words replaced in such a sentence."""
