"""One optimiser step, the same for both stages of pretraining."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from compo_pipeline.training.finite import refuse_non_finite


def descend(
    loss: Tensor,
    optimizer: torch.optim.Optimizer,
    rate: float,
    *,
    step: int,
    key: str,
    state: Path | None = None,
) -> float:
    """Take a step down the gradient, clipped to norm 1.

    Args:
        loss: a scalar.
        optimizer: of all that trains.
        rate: learning rate of this step.
        step: counted from 0, for the error.
        key: where the learning rate is configured, for the error.
        state: the file that a run resumes from, where it keeps one.

    Returns:
        The loss.

    Raises:
        TrainingError: the loss or its gradient is not finite; no weight has changed.
    """
    trained = [p for group in optimizer.param_groups for p in group["params"]]
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    norm = nn.utils.clip_grad_norm_(trained, 1.0)
    figures = {"loss": loss.item(), "gradient_norm": norm.item()}
    refuse_non_finite(figures, step, state=state, advice=f"Lower {key}")
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    return figures["loss"]
