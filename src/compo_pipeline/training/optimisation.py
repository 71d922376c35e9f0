"""Which weights train, with which decay, at which rate."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from typing import Any

import torch
from torch import nn

from compo_pipeline.configuration import SettingsError, nearest
from compo_pipeline.methods.contract import Tower
from compo_pipeline.models import lora
from compo_pipeline.training.settings import OptimizerSettings


def freeze(
    model: nn.Module, trains: Set[Tower], *, scale: bool = True, frozen: Sequence[str] = ()
) -> None:
    """Let gradients reach the given towers only, and put the others in evaluation mode.

    The image tower is `visual`, the text tower all the rest, its projection included;
    logit_scale and logit_bias train with either where `scale` says so. Of a model with adapters,
    they alone train.

    Args:
        model: the whole model.
        trains: the towers that train.
        scale: whether logit_scale and logit_bias train too.
        frozen: names of parameters or modules (`token_embedding`) of these towers that stay fixed.

    Raises:
        SettingsError: the model has no parameter of a frozen name.
    """
    names = [name for name, _ in model.named_parameters()]
    for prefix in frozen:
        if not any(_below(name, prefix) for name in names):
            parts = sorted({name.split(".")[0] for name in names})
            raise SettingsError(
                f"training.frozen: the model has no parameter '{prefix}'"
                f"{nearest(prefix, names + parts)} (modules: {', '.join(parts)})"
            )
    adapted = set(lora.adapters(model))
    for name, parameter in model.named_parameters():
        calibrates = name in ("logit_scale", "logit_bias")
        whole = scale if calibrates else _tower(name) in trains
        whole = whole and not any(_below(name, prefix) for prefix in frozen)
        parameter.requires_grad_(name in adapted if adapted else whole)
    for name, child in model.named_children():
        child.train(_tower(name) in trains)
    if adapted:
        # Batch norms in training mode would move their means: all but the adapters stays.
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()


def _below(name: str, prefix: str) -> bool:
    """Whether a parameter is the one of a dotted name, or belongs to the module of that name."""
    return f"{name}.".startswith(f"{prefix}.")


def _tower(name: str) -> Tower:
    """The tower that a parameter or a module belongs to."""
    return "image" if name.split(".")[0] == "visual" else "text"


def adamw(model: nn.Module, settings: OptimizerSettings) -> torch.optim.AdamW:
    """AdamW over what trains; weight decay on tensors of two dimensions or more."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups, lr=settings.lr, betas=settings.betas, eps=settings.eps, fused=True
    )


def learning_rate(step: int, steps: int, settings: OptimizerSettings) -> float:
    """The rate at a step of `steps`: linear warm-up, then cosine.

    Source: CLIC paper, App. C.
    """
    if settings.warmup_steps is None:
        rising = int(settings.warmup * steps)
    else:
        rising = min(settings.warmup_steps, steps - 1)
    if step < rising:
        return settings.lr_start + (settings.lr - settings.lr_start) * step / rising
    fallen = (step - rising) / max(1, steps - 1 - rising)
    return settings.lr_end + (settings.lr - settings.lr_end) * (1 + math.cos(math.pi * fallen)) / 2
