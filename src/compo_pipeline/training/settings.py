"""The recipe: how a method is trained, whatever the method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class OptimizerSettings:
    """AdamW and its schedule: linear from `lr_start` to `lr`, then cosine to `lr_end`.

    Attributes:
        lr: peak learning rate.
        lr_start: at the first step.
        lr_end: at the last step.
        warmup: share of all steps that rise, 0..1.
        betas: of AdamW.
        eps: of AdamW.
        weight_decay: of matrices; biases, norms and scalars have none.
        clip_norm: largest norm of the whole gradient; null leaves it alone.
    """

    lr: float
    lr_start: float
    lr_end: float
    warmup: float = 0.2
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-8
    weight_decay: float = 0.1
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        """Bounds that a type cannot say."""
        if not 0 <= self.warmup < 1:
            raise ValueError(f"warmup: expected a share of the steps in [0, 1), got {self.warmup}")


@dataclass(frozen=True)
class TrainingSettings:
    """How long, how large, where, and how safe.

    Attributes:
        epochs: passes over the training rows; where views hold fewer epochs, they come round
            again in another order.
        batch_size: rows a step.
        optimizer: AdamW and its schedule.
        device: auto takes CUDA where there is one.
        precision: bf16 is autocast over float32 weights.
        workers: processes that read pictures and texts; 0 reads in the main process.
        cache_features: embed every picture once, before training; needs a frozen image tower.
        save_every: steps between checkpoints of the state to resume from.
        log_every: steps between points of the curves.
        overwrite: start afresh where the state on disk belongs to another configuration.
        max_steps: stop early (for trials); null runs all epochs.
    """

    epochs: int
    batch_size: int
    optimizer: OptimizerSettings
    device: str = "auto"
    precision: Literal["bf16", "fp32"] = "bf16"
    workers: int = 1
    cache_features: bool = False
    save_every: int = 250
    log_every: int = 25
    overwrite: bool = False
    max_steps: int | None = None

    def __post_init__(self) -> None:
        """Bounds that a type cannot say."""
        for name in ("epochs", "batch_size", "save_every", "log_every", "max_steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}: expected at least 1, got {value}")
        if self.workers < 0:
            raise ValueError(f"workers: expected at least 0, got {self.workers}")


# What changes how a run proceeds but not what comes out of it, so not part of its fingerprint.
INCIDENTAL = ("workers", "save_every", "log_every", "overwrite")
