"""One optimiser step, the same for both stages of pretraining."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from compo_pipeline.training.optimisation import AmpOptimizer, non_finite, refuse_non_finite

# Largest norm of the whole gradient.
CLIP_NORM = 1.0


def descend(
    loss: Tensor,
    descent: AmpOptimizer,
    rate: float,
    *,
    step: int,
    key: str,
    state: Path | None = None,
) -> float:
    """Take a step and read its loss.

    Args:
        loss: a scalar.
        descent: of all that trains.
        rate: learning rate of this step.
        step: counted from 0, for the error.
        key: where the learning rate is configured, for the error.
        state: the file that a run resumes from, where it keeps one.

    Returns:
        The loss.

    Raises:
        TrainingError: the loss or its gradient is not finite; no weight has changed.
    """
    norm = descent.step(loss, rate)
    figures = {"loss": loss.item(), "gradient_norm": norm.item()}
    if non_finite(figures) and not descent.overflow_is_normal():
        advice = f"Lower {key}, or set pretraining.precision=fp32"
        refuse_non_finite(figures, step, state=state, advice=advice)
    return figures["loss"]
