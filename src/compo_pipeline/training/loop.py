"""The one training loop. It knows no method: batches come from a `Method`, losses go to a sum."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from compo_pipeline.methods.contract import Collated, LossTerms, Method
from compo_pipeline.models.encoding import clamp_scale
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.progress import Meter
from compo_pipeline.seeding import digest
from compo_pipeline.training import checkpoint, optimisation
from compo_pipeline.training.batches import Batches
from compo_pipeline.training.device import moved
from compo_pipeline.training.encoder import ModelEncoder
from compo_pipeline.training.features import Features
from compo_pipeline.training.fingerprint import check
from compo_pipeline.training.finite import refuse_non_finite
from compo_pipeline.training.progress import Point, Progress
from compo_pipeline.training.settings import TrainingSettings

log = logging.getLogger(__name__)

ADVICE = "Lower training.optimizer.lr, or set training.precision=fp32"


def train(
    loaded: LoadedModel,
    method: Method,
    batches: Batches,
    features: Features | None,
    settings: TrainingSettings,
    *,
    device: torch.device,
    state: Path,
    fingerprint: Mapping[str, Any],
    report: Callable[[Point], None],
    watch: Callable[[int, LoadedModel], None] | None = None,
) -> Progress:
    """Train a model in place, from the state on disk where there is one.

    Args:
        loaded: the model, on the device.
        method: collates and scores.
        batches: one a step.
        features: of a frozen image tower; None encodes pictures as they come.
        settings: the recipe.
        device: of the model.
        state: file to save to and resume from; its name labels the progress.
        fingerprint: of all that decides the outcome; a state of another one is refused.
        report: gets every new point of the curves.
        watch: gets the step and the model, in evaluation mode, whenever its state has been saved.

    Raises:
        TrainingError: a loss or the gradient is not finite.
        FingerprintError: the state belongs to another configuration.
    """
    model = loaded.model
    optimisation.freeze(model, method.trains, scale=method.trains_scale)
    optimizer = optimisation.adamw(model, settings.optimizer)
    progress = Progress()
    if check(state, fingerprint, overwrite=settings.overwrite):
        saved = checkpoint.restore(state, {"model": model}, optimizer)
        progress = Progress.from_dict(saved["progress"])
        log.info("%s: %d of %d steps are done.", state.stem, progress.step, len(batches))
    images = "image" in method.trains
    encoder = ModelEncoder(model, loaded.name, features, images, device, settings.precision)
    remaining = range(progress.step, len(batches))
    with (
        Meter(len(batches), f"training {state.stem}", done=progress.step) as meter,
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
    ):
        for batch, counts in _loader(batches, remaining, settings.workers, device):
            # Towers with dropout draw from torch's global state: the same at a step of any run.
            torch.manual_seed(digest(batches.seed, "step", progress.step))
            rate = optimisation.learning_rate(progress.step, len(batches), settings.optimizer)
            terms = method.loss(encoder, moved(batch, device))
            losses = _step(terms, optimizer, rate, settings.optimizer.clip_norm)
            clamp_scale(model)
            refuse_non_finite(losses, progress.step, state=state, advice=ADVICE)
            progress.note(losses, counts)
            meter.advance(loss=losses["loss"], lr=rate)
            last = progress.step == len(batches)
            if progress.step % settings.log_every == 0 or last:
                report(progress.close(lr=rate, scale=encoder.scale.item()))
            if progress.step % settings.save_every == 0 or last:
                saved = {"fingerprint": dict(fingerprint), "progress": progress.as_dict()}
                checkpoint.save(state, {"model": model}, optimizer, saved)
                if watch is not None:
                    _show(watch, progress.step, loaded, method)
    model.eval()
    return progress


def _show(
    watch: Callable[[int, LoadedModel], None], step: int, loaded: LoadedModel, method: Method
) -> None:
    """Let somebody look at the model as it would be evaluated."""
    loaded.model.eval()
    if "image" in method.trains:
        # Embeddings are shared by models of one image tower, and this is no longer the base's.
        fingerprint = f"{loaded.image_fingerprint} {method.name} at {step}"
        loaded = replace(loaded, image_fingerprint=fingerprint)
    with torch.no_grad():
        watch(step, loaded)
    optimisation.freeze(loaded.model, method.trains, scale=method.trains_scale)


def _loader(
    batches: Batches, steps: range, workers: int, device: torch.device
) -> DataLoader[Collated]:
    """Batches of the steps, in their order, made by processes where there are workers."""
    pinned = device.type == "cuda"
    return DataLoader(
        batches, batch_size=None, sampler=steps, num_workers=workers, pin_memory=pinned
    )


def _step(
    terms: LossTerms, optimizer: torch.optim.Optimizer, rate: float, clip_norm: float | None
) -> dict[str, float]:
    """One optimiser step, left out where the loss or its gradient is not finite.

    Returns:
        The weighted sum, each loss by its name, and the norm of the gradient.
    """
    total = torch.stack([weight * value for value, weight in terms.values()]).sum()
    losses = {"loss": total.item(), **{name: value.item() for name, (value, _) in terms.items()}}
    if not math.isfinite(losses["loss"]):
        return losses
    optimizer.zero_grad(set_to_none=True)
    total.backward()  # type: ignore[no-untyped-call]
    trained = [p for group in optimizer.param_groups for p in group["params"]]
    norm = nn.utils.get_total_norm([p.grad for p in trained if p.grad is not None])
    losses["gradient_norm"] = norm.item()
    if not math.isfinite(losses["gradient_norm"]):
        return losses
    if clip_norm is not None:
        nn.utils.clip_grads_with_norm_(trained, clip_norm, norm)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    return losses
