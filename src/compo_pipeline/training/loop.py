"""The one training loop. It knows no method: batches come from a `Method`, losses go to a sum."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from compo_pipeline.compute import Compute, moved
from compo_pipeline.methods.contract import Collated, Method
from compo_pipeline.models.encoding import clamp_scale
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.progress import Meter
from compo_pipeline.seeding import digest
from compo_pipeline.training import checkpoint, optimisation
from compo_pipeline.training.batches import Batches
from compo_pipeline.training.descent import Descent, StepFigures
from compo_pipeline.training.encoder import ModelEncoder
from compo_pipeline.training.features import Features
from compo_pipeline.training.fingerprint import check
from compo_pipeline.training.finite import refuse_non_finite, wrong_figures
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
    compute: Compute,
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
        compute: where, and in which precision.
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
    descent = Descent(optimizer, compute, settings.optimizer.clip_norm)
    progress = Progress()
    if check(state, fingerprint, overwrite=settings.overwrite):
        saved = checkpoint.restore(state, {"model": model}, optimizer)
        descent.load_state_dict(saved["loss_scale"])
        progress = Progress.from_dict(saved["progress"])
        log.info("%s: %d of %d steps are done.", state.stem, progress.step, len(batches))
    images = "image" in method.trains
    device = compute.device
    encoder = ModelEncoder(model, loaded.name, features, images, compute)
    remaining = range(progress.step, len(batches))
    figures = StepFigures()
    shown: dict[str, float] = {}
    with (
        Meter(len(batches), f"training {state.stem}", done=progress.step) as meter,
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
    ):
        loader = _loader(batches, remaining, settings.workers, device)
        for done, (batch, counts) in enumerate(loader, progress.step + 1):
            # Towers with dropout draw from torch's global state: the same at a step of any run.
            torch.manual_seed(digest(batches.seed, "step", done - 1))
            rate = optimisation.learning_rate(done - 1, len(batches), settings.optimizer)
            terms = method.loss(encoder, moved(batch, device))
            total = torch.stack([weight * value for value, weight in terms.values()]).sum()
            norm = descent.step(total, rate)
            clamp_scale(model)
            losses = {name: value for name, (value, _) in terms.items()}
            figures.add(loss=total, **losses, gradient_norm=norm)
            progress.counts.update(counts)
            last = done == len(batches)
            logs, saves = (
                last or done % every == 0 for every in (settings.log_every, settings.save_every)
            )
            if logs or saves:
                shown = _take_in(figures, progress, descent, state) or shown
            meter.advance(**shown, lr=rate)
            if logs:
                report(progress.close(lr=rate, scale=encoder.scale.item()))
            if saves:
                saved = {
                    "fingerprint": dict(fingerprint),
                    "progress": progress.as_dict(),
                    "loss_scale": descent.state_dict(),
                }
                checkpoint.save(state, {"model": model}, optimizer, saved)
                if watch is not None:
                    _show(watch, done, loaded, method)
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


def _take_in(
    figures: StepFigures, progress: Progress, descent: Descent, state: Path
) -> dict[str, float]:
    """Read the losses of the steps since the last reading; those of the last finite one.

    Raises:
        TrainingError: a loss or a gradient was not finite. No weight has changed by that step.
    """
    steps, adapts = figures.read(), descent.adapts()
    shown: dict[str, float] = {}
    for losses in steps:
        if adapts and wrong_figures(losses):
            progress.note({}, {"steps left out for overflow": 1})
            continue
        if not math.isfinite(losses["loss"]):
            del losses["gradient_norm"]  # only a consequence
        refuse_non_finite(losses, progress.step, state=state, advice=ADVICE)
        progress.note(losses, {})
        shown = {"loss": losses["loss"]}
    return shown
