"""The one training loop. It knows no method: batches come from a `Method`, losses go to a sum."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
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
from compo_pipeline.training.validation import Selection, Validator

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
    validator: Validator | None = None,
    steps: int | None = None,
) -> Progress:
    """Train a model in place, from the state on disk where there is one.

    It ends with the weights of the last step or, where the recipe keeps the best, of the best
    validation.

    Args:
        loaded: the model, on the device.
        method: collates and scores.
        batches: one a step.
        features: of a frozen image tower; None encodes images as they come.
        settings: the recipe.
        compute: where, and in which precision.
        state: file to save to and resume from; its name labels the progress.
        fingerprint: of all that decides the outcome; a state of another one is refused.
        report: gets every new point of the curves.
        watch: gets the step and the model, in evaluation mode, whenever its state has been saved.
        validator: measures the model every `settings.validation.every` steps and at the last.
        steps: exactly so many are taken, by the schedule of all; None takes all, or stops early
            as configured.

    Raises:
        TrainingError: a loss or the gradient is not finite.
        FingerprintError: the state belongs to another configuration.
    """
    model = loaded.model
    _freeze(model, method, settings)
    optimizer = optimisation.adamw(model, settings.optimizer)
    descent = Descent(optimizer, compute, settings.optimizer.clip_norm)
    selection = Selection.of(settings)
    progress, best = Progress(), dict[str, Tensor]()
    if check(state, fingerprint, overwrite=settings.overwrite):
        saved = checkpoint.restore(state, {"model": model}, optimizer)
        descent.load_state_dict(saved["loss_scale"])
        progress, best = Progress.from_dict(saved["progress"]), checkpoint.read_best(state)
        log.info("%s: %d of %d steps are done.", state.stem, progress.step, len(batches))
    images = "image" in method.trains
    device = compute.device
    encoder = ModelEncoder(model, loaded.name, features, images, compute)
    end = len(batches) if steps is None else min(steps, len(batches))
    remaining = range(progress.step, progress.step if progress.finished else end)
    figures = StepFigures()
    shown: dict[str, float] = {}
    with (
        Meter(len(batches), f"training {state.stem}", done=progress.step) as meter,
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
    ):
        if validator is not None and progress.step == 0:
            with _evaluating(loaded, method, settings, 0) as base:
                progress.curve.append({"step": 0, **validator(base, encoder)})
            report(progress.curve[-1])
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
            progress.finished = done == end
            logs, validates, saves = (
                progress.finished or (every is not None and done % every == 0)
                for every in (settings.log_every, settings.validation.every, settings.save_every)
            )
            validates = validates and validator is not None
            if logs or validates or saves:
                shown = _take_in(figures, progress, descent, state) or shown
            meter.advance(**shown, lr=rate)
            if logs or validates:
                point = progress.close(lr=rate, scale=encoder.scale.item())
                if validates and validator is not None:
                    with _evaluating(loaded, method, settings, done) as evaluated:
                        measured = validator(evaluated, encoder)
                    refuse_non_finite(measured, done - 1, state=state, advice=ADVICE)
                    point |= measured
                    if selection.keeps_best and selection.best(progress.curve) is point:
                        best = _trained_weights(model)
                    progress.finished |= steps is None and selection.stops(progress.curve)
                report(point)
            if saves or progress.finished:
                saved = {
                    "fingerprint": dict(fingerprint),
                    "progress": progress.as_dict(),
                    "loss_scale": descent.state_dict(),
                }
                checkpoint.save(state, {"model": model}, optimizer, saved, best)
                if watch is not None:
                    with _evaluating(loaded, method, settings, done) as evaluated:
                        watch(done, evaluated)
            if progress.finished:
                break
    if best:
        model.load_state_dict({**model.state_dict(), **best})
    model.eval()
    return progress


def _freeze(model: nn.Module, method: Method, settings: TrainingSettings) -> None:
    """Let gradients reach what the method and the recipe train."""
    optimisation.freeze(model, method.trains, scale=method.trains_scale, frozen=settings.frozen)


def _trained_weights(model: nn.Module) -> dict[str, Tensor]:
    """Copies, in main memory, of all weights and buffers but the frozen weights."""
    frozen = {name for name, one in model.named_parameters() if not one.requires_grad}
    state = model.state_dict()
    return {name: state[name].to("cpu", copy=True) for name in state.keys() - frozen}


@contextmanager
def _evaluating(
    loaded: LoadedModel, method: Method, settings: TrainingSettings, step: int
) -> Iterator[LoadedModel]:
    """The model as it would be evaluated: in evaluation mode, without gradients."""
    loaded.model.eval()
    if "image" in method.trains:
        # Embeddings are shared by models of one image tower, and this is no longer the base's.
        fingerprint = f"{loaded.image_fingerprint} {method.name} at {step}"
        loaded = replace(loaded, image_fingerprint=fingerprint)
    with torch.no_grad():
        yield loaded
    _freeze(loaded.model, method, settings)


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
