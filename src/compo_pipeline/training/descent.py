"""Optimiser steps that never wait for the device.

Losses of a step stay on the device until somebody reads them, and a step whose loss or gradient is
not finite changes no weight and no moment, without anyone having looked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from compo_pipeline.compute import Compute


class Descent:
    """Steps of an optimiser in one precision; in fp16 the loss is scaled, by as much as it bears.

    Args:
        optimizer: fused AdamW: its kernel leaves out a step that was found not finite.
        compute: where the gradients are.
        clip_norm: largest norm of the whole gradient; None leaves it alone.
    """

    def __init__(
        self, optimizer: torch.optim.AdamW, compute: Compute, clip_norm: float | None
    ) -> None:
        self._optimizer, self._clip_norm = optimizer, clip_norm
        self._trained = [p for group in optimizer.param_groups for p in group["params"]]
        self._scaler = torch.amp.GradScaler(
            compute.device.type, enabled=compute.precision == "fp16"
        )

    def step(self, loss: Tensor, rate: float) -> Tensor:
        """Take a step down the gradient of a scalar loss, at a learning rate.

        Returns:
            The norm of the gradient before it was clipped.
        """
        self._optimizer.zero_grad(set_to_none=True)
        # A loss that is not finite may have a finite gradient: that is made NaN too, so that one
        # look at the gradient tells of both.
        slope = torch.where(loss.isfinite(), 1.0, float("nan"))
        self._scaler.scale(loss).backward(slope)  # type: ignore[no-untyped-call]
        self._scaler.unscale_(self._optimizer)
        norm = nn.utils.get_total_norm([p.grad for p in self._trained if p.grad is not None])
        if self._clip_norm is not None:
            nn.utils.clip_grads_with_norm_(self._trained, self._clip_norm, norm)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        if not self._scaler.is_enabled():
            # As the scaler tells the optimiser where there is one.
            self._optimizer.found_inf = (~norm.isfinite()).float()  # type: ignore[attr-defined]
        self._scaler.step(self._optimizer)
        self._scaler.update()
        return norm

    def adapts(self) -> bool:
        """Whether a step that was not finite is no error: in fp16 the scale of the loss was too
        large, and has been halved. A scale below 1 is no longer the reason. Waits for the device.
        """
        return self._scaler.is_enabled() and self._scaler.get_scale() >= 1.0

    def state_dict(self) -> dict[str, Any]:
        """The scale of the loss, JSON-ready; empty where it is not scaled. Waits for the device."""
        return self._scaler.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with what `state_dict` gave."""
        self._scaler.load_state_dict(dict(state))


class StepFigures:
    """Losses of the steps since the last reading, on the device."""

    def __init__(self) -> None:
        self._steps: list[dict[str, Tensor]] = []

    def add(self, **figures: Tensor) -> None:
        """Note the losses of a step, scalars by name."""
        self._steps.append({name: value.detach() for name, value in figures.items()})

    def read(self) -> list[dict[str, float]]:
        """Those of every step since the last reading, in one transfer from the device."""
        if not self._steps:
            return []
        steps, self._steps = self._steps, []
        flat = torch.stack([value for step in steps for value in step.values()])
        numbers = iter(flat.tolist())
        return [{name: next(numbers) for name in step} for step in steps]
