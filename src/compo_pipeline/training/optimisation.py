"""Optimiser of a training: frozen weights, AdamW, learning rate schedule, mixed precision.

A step whose loss or gradient is not finite changes no weight and no moment, without a transfer from
the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from pathlib import Path
from typing import Any

import torch
from open_clip.coca_model import CoCa
from torch import Tensor, nn

from compo_pipeline.core.compute import Compute
from compo_pipeline.core.settings import SettingsError, nearest
from compo_pipeline.methods.contract import HEAD, Method, Need, Tower
from compo_pipeline.models import dense
from compo_pipeline.models.encoding import (
    image_projection,
    text_projection,
    text_tower,
    token_embedding_name,
)
from compo_pipeline.training.checkpoint import TrainingError, resume_hint
from compo_pipeline.training.ranks import ALONE, Ranks
from compo_pipeline.training.settings import TRUNK, OptimizerSettings, TrainingSettings

_REFUSE: dict[Need, Callable[..., object]] = {
    "patches": dense.refuse_without_patches,
    "tokens": dense.dense_text_tower,
    "marked_tokens": partial(dense.dense_text_tower, marked=True),
    "text_projection": text_projection,
}


def freeze(
    model: nn.Module, trains: Set[Tower], *, scale: bool = True, frozen: Sequence[str] = ()
) -> None:
    """Enable gradients of the given towers only, and put any other tower in evaluation mode.

    The image tower is `visual`, the text tower all the rest, its projection included;
    logit_scale and logit_bias train with either where `scale` says so. Of a model with adapters,
    they alone train. A method's own module (`contract.HEAD`) always does.

    Args:
        model: the whole model.
        trains: the towers that train.
        scale: whether logit_scale and logit_bias train too.
        frozen: names of the parts of the towers that stay fixed, see `frozen_parts`.

    Raises:
        SettingsError: the model has no parameter of a frozen name.
    """
    frozen = frozen_parts(model, frozen)
    adapted = set(adapter_names(model))
    for name, parameter in model.named_parameters():
        calibrates = name in ("logit_scale", "logit_bias")
        whole = scale if calibrates else _tower(name) in trains
        whole = whole and not any(_is_below(name, prefix) for prefix in frozen)
        trained = name in adapted if adapted else whole
        parameter.requires_grad_(trained or _is_below(name, HEAD))
    for name, child in model.named_children():
        child.train(_tower(name) in trains)
    # Batch norms in training mode would move their means although their weights are frozen.
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.train(module.training and any(p.requires_grad for p in module.parameters()))


def frozen_parts(model: nn.Module, frozen: Iterable[str]) -> list[str]:
    """Full names, in this model, of the parts that `training.frozen` lists.

    A part of the text tower may be named without the `text.` under which some kinds of model keep
    it, `token_embedding` is found in towers of Hugging Face too, and `visual.trunk` is all of an
    image tower but its projection.

    Raises:
        SettingsError: the model has no parameter or module of a name.
    """
    names = [name for name, _ in model.named_parameters()]
    found = []
    for given in frozen:
        own = [given, f"text.{given}"]
        if given == "token_embedding":
            own += filter(None, [token_embedding_name(model)])
        there = next((name for name in own if any(_is_below(each, name) for each in names)), None)
        if there is not None:
            found.append(there)
        elif given == TRUNK and (projection := image_projection(model)):
            image = (name for name in names if _tower(name) == "image")
            found += [name for name in image if not _is_below(name, projection[1])]
        else:
            modules = [name for name, _ in model.named_modules()]
            parts = sorted({name.split(".")[0] for name in names})
            raise SettingsError(
                f"training.frozen: the model has no parameter or module '{given}'"
                f"{nearest(given, [*modules, *names])} (it has: {', '.join(parts)})"
            )
    return found


def projection_alone(model: nn.Module, frozen: Sequence[str]) -> bool:
    """Whether the projection is the only part of the image tower that is not frozen."""
    found, fixed = image_projection(model), frozen_parts(model, frozen)
    parts = (name for name, _ in model.named_parameters() if _tower(name) == "image")
    trained = [name for name in parts if not any(_is_below(name, prefix) for prefix in fixed)]
    return found is not None and all(_is_below(name, found[1]) for name in trained)


def adapter_names(model: nn.Module) -> list[str]:
    """Names of a model's adapter parameters, LoRA or parametrizations; empty without adapters."""
    parts = {name: set(name.split(".")) for name, _ in model.named_parameters()}
    return [
        name
        for name, own in parts.items()
        if {"lora_A", "lora_B"} & own or ("parametrizations" in own and "original" not in own)
    ]


def _is_below(name: str, prefix: str) -> bool:
    """Whether a parameter has a given dotted name, or belongs to the module of that name."""
    return f"{name}.".startswith(f"{prefix}.")


def _tower(name: str) -> Tower:
    """The tower (`image` or `text`) that a parameter or module name belongs to."""
    return "image" if name.split(".")[0] == "visual" else "text"


def speed_up(model: nn.Module, settings: TrainingSettings, device: torch.device) -> None:
    """Apply the settings that change time or memory, such as compilation and checkpointing.

    They change numbers by rounding alone.

    Images are laid out with channels last where a GPU computes more convolutions than the one of a
    vision transformer.
    """
    visual: Any = model.visual
    if settings.gradient_checkpointing:
        model.set_grad_checkpointing(True)  # type: ignore[operator]
    if settings.compile:
        text = text_tower(model)
        texts: Any = model.text if text is None else text.transformer
        # Texts are cut to the longest of a group, so that their shapes differ from step to step.
        visual.compile(dynamic=False)
        texts.compile(dynamic=True)
    convolutions = sum(isinstance(module, nn.Conv2d) for module in visual.modules())
    if device.type == "cuda" and convolutions > 1:
        visual.to(memory_format=torch.channels_last)


def refuse_batch_norm(model: nn.Module) -> None:
    """Raise an error if a trained tower has batch norms, which need the whole batch at once.

    Raises:
        SettingsError: a tower that trains has batch norms.
    """
    norms = nn.modules.batchnorm._BatchNorm
    for name, module in model.named_modules():
        if isinstance(module, norms) and module.training:
            raise SettingsError(
                f"training.microbatch and training.distributed: batch norms of the model ({name}) "
                "would take the mean of a part of the batch; expected a model without batch norms "
                "or one whose tower with them is frozen (or has adapters: training.lora.rank)"
            )


def misfits(
    model: nn.Module, name: str, method: Method, settings: TrainingSettings
) -> Iterator[str]:
    """Yield a message for each reason why a base model cannot be trained with these settings.

    Args:
        model: the base. Its weights are not read, so it may be on the meta device.
        name: name of the base, for the messages.
        method: method that trains it.
        settings: the recipe.
    """
    if isinstance(model, CoCa):
        yield f"model.name: '{name}' is a CoCa model, which benchmarks score and no method trains"
    for need, otherwise in method.needs.items():
        try:
            _REFUSE[need](model, name, otherwise)
        except SettingsError as error:
            yield f"{error.message} (method: {method.name})"
    if "text_projection" in method.needs:
        if settings.lora.rank is not None:
            yield f"training.lora.rank: {method.name} trains a map of texts alone; expected null"
        if any("text_projection" in part.split(".") for part in settings.frozen):
            yield f"training.frozen: {method.name} trains what text_projection gives; leave it out"
    processes = settings.distributed.nproc_per_node
    try:
        freeze(model, method.trains, scale=method.trains_scale, frozen=settings.frozen)
        if settings.lora.rank is not None:
            from compo_pipeline.models import lora  # it imports transformers: seconds

            lora.adapter_targets(model, name, method.trains)
        elif settings.microbatch is not None or processes not in (1, "auto"):
            refuse_batch_norm(model)
    except SettingsError as error:
        yield error.message


def adamw(model: nn.Module, settings: OptimizerSettings) -> torch.optim.AdamW:
    """AdamW over the trained parameters, with weight decay on parameters of several dimensions."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups, lr=settings.lr, betas=settings.betas, eps=settings.eps, fused=True
    )


def learning_rate(step: int, steps: int, settings: OptimizerSettings) -> float:
    """Learning rate of a step, counted from 0: linear warm-up, then cosine decay.

    The last step of the warm-up and the one after it have the peak rate; the cosine would reach
    `lr_end` one step after the last.

    Source: CLIC paper, App. C, as its code and open_clip's (FSC-CLIP, C2LIP) compute it.
    """
    rising = _warmup_length(steps, settings)
    if step < rising:
        risen = step / max(1, rising - 1)
        return settings.lr_start + (settings.lr - settings.lr_start) * risen
    fallen = (step - rising) / (steps - rising)
    return settings.lr_end + (settings.lr - settings.lr_end) * (1 + math.cos(math.pi * fallen)) / 2


def refuse_long_warmup(steps: int, settings: OptimizerSettings) -> None:
    """Raise an error if the warm-up of the learning rate is as long as the training.

    Raises:
        SettingsError: the warm-up is as long as the training.
    """
    rising = _warmup_length(steps, settings)
    if rising >= steps:
        raise SettingsError(
            f"training.optimizer.warmup_steps: expected fewer than the training's {steps} steps, "
            f"got {rising}; train longer (training.epochs, data.sample.rows), or set it to null, "
            "which leaves the warm-up to the share of all steps in training.optimizer.warmup"
        )


def _warmup_length(steps: int, settings: OptimizerSettings) -> int:
    """Number of warm-up steps of a training with `steps` steps."""
    if settings.warmup_steps is None:
        return int(settings.warmup * steps)
    return settings.warmup_steps


class AmpOptimizer:
    """Wrapper of AdamW for mixed precision: clips gradients, and scales the loss in fp16.

    Args:
        optimizer: fused AdamW: its kernel leaves out a step that was found not finite.
        compute: device and precision of the gradients.
        clip_norm: largest norm of the whole gradient; None does not clip it.
        ranks: processes whose gradients are summed.

    Attributes:
        scaler: scales the loss in fp16; its state is empty in another precision.
    """

    def __init__(
        self,
        optimizer: torch.optim.AdamW,
        compute: Compute,
        clip_norm: float | None,
        ranks: Ranks = ALONE,
    ) -> None:
        self._optimizer, self._clip_norm, self._ranks = optimizer, clip_norm, ranks
        self._compute = compute
        self._trained = [p for group in optimizer.param_groups for p in group["params"]]
        self.scaler = torch.amp.GradScaler(compute.device.type, enabled=compute.precision == "fp16")

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of a scalar loss to those of the step, and free its graph."""
        # A loss that is not finite may have a finite gradient: that is made NaN too, so that one
        # check of the gradient covers both.
        slope = torch.where(loss.isfinite(), 1.0, float("nan"))
        with self._compute.attention():
            self.scaler.scale(loss).backward(slope)  # type: ignore[no-untyped-call]

    def step(self, rate: float) -> Tensor:
        """Take an optimiser step at a given learning rate, by the gradients since the last one.

        Returns:
            The norm of the gradient before it was clipped.
        """
        self._ranks.sum_gradients(self._trained)
        self.scaler.unscale_(self._optimizer)
        norm = nn.utils.get_total_norm([p.grad for p in self._trained if p.grad is not None])
        if self._clip_norm is not None:
            nn.utils.clip_grads_with_norm_(self._trained, self._clip_norm, norm)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        if not self.scaler.is_enabled():
            # An enabled scaler sets the same attribute.
            self._optimizer.found_inf = (~norm.isfinite()).float()  # type: ignore[attr-defined]
        self.scaler.step(self._optimizer)
        self.scaler.update()
        self._optimizer.zero_grad(set_to_none=True)
        return norm

    def overflow_is_normal(self) -> bool:
        """Whether a non-finite step is an fp16 overflow that a smaller loss scale will end.

        The scale has been halved; one below 1 is no longer the reason. Waits for the device.
        """
        return self.scaler.is_enabled() and self.scaler.get_scale() >= 1.0


def non_finite(losses: Mapping[str, float]) -> list[str]:
    """Names of the losses that are infinite or NaN."""
    return [name for name, value in losses.items() if not math.isfinite(value)]


def refuse_non_finite(
    losses: Mapping[str, float], step: int, *, state: Path | None, advice: str
) -> None:
    """Raise an error if a loss or the gradient norm of a step is not finite.

    Args:
        losses: losses and the norm of the gradient, by name.
        step: counted from 0.
        state: the file that a run resumes from, where it keeps one.
        advice: advice on which keys to change, for the error.

    Raises:
        TrainingError: naming what is not finite.
    """
    if wrong := non_finite(losses):
        raise TrainingError(
            f"step {step}: {', '.join(wrong)} is not finite ({dict(losses)}); "
            f"{resume_hint(state)}. {advice}"
        )
