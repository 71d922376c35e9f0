"""The one training loop. It knows no method by name: a `Method` makes batches and loss terms."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from compo_pipeline.core.compute import Compute, moved
from compo_pipeline.core.progress import Meter
from compo_pipeline.core.seeding import digest
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.methods.contract import Collated, Method
from compo_pipeline.models.encoding import clamp_scale
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.training import checkpoint
from compo_pipeline.training.batches import Batches, Groups
from compo_pipeline.training.checkpoint import Point, Progress
from compo_pipeline.training.encoder import ModelEncoder
from compo_pipeline.training.features import Features
from compo_pipeline.training.fingerprint import read_matching_progress
from compo_pipeline.training.optimisation import (
    AmpOptimizer,
    adamw,
    freeze,
    learning_rate,
    non_finite,
    refuse_batch_norm,
    refuse_long_warmup,
    refuse_non_finite,
)
from compo_pipeline.training.ranks import ALONE, Ranks
from compo_pipeline.training.settings import TrainingSettings
from compo_pipeline.training.validation import Validator, best_point, stops_early

log = logging.getLogger(__name__)

ADVICE = "Lower training.optimizer.lr, or set training.precision=fp32"


def fit(
    loaded: LoadedModel,
    method: Method,
    batches: Batches,
    settings: TrainingSettings,
    compute: Compute,
    state: Path,
    fingerprint: Mapping[str, Any],
    report: Callable[[Point], None],
    *,
    features: Features | None = None,
    validator: Validator | None = None,
    on_save: Callable[[int, LoadedModel], None] | None = None,
    steps: int | None = None,
    ranks: Ranks = ALONE,
) -> Progress:
    """Train a model in place, starting from the state on disk if there is one.

    The model then has the weights of the last step or, where the recipe keeps the best, of the
    best validation.

    Args:
        loaded: the model, on the device.
        method: collates batches and computes loss terms.
        batches: one a step.
        settings: the recipe.
        compute: device and precision.
        state: file to save to and resume from; its name labels the progress.
        fingerprint: hash of everything that determines the weights. A state with another one is
            refused.
        report: called with every new point of the curves.
        features: features of a frozen image tower. None encodes images at each step.
        validator: measures the model every `validation.every` steps and at the last.
        on_save: called with the step and the model, in eval mode, whenever the state has been
            saved; an exception of it ends the training.
        steps: number of steps, by the schedule of all; None takes all, or stops early as
            configured.
        ranks: processes that train together. Only the first one reports, validates and saves.

    Raises:
        SettingsError: the model cannot be trained on parts of a batch, or the warm-up is as long
            as the training.
        TrainingError: a loss, the gradient or a state to be saved is not finite.
        FingerprintError: the state belongs to another configuration.
    """
    model, device, planned = loaded.model, compute.device, len(batches)
    last = planned if steps is None else min(steps, planned)
    refuse_long_warmup(planned, settings.optimizer)
    set_trained = partial(
        freeze, model, method.trains, scale=method.trains_scale, frozen=settings.frozen
    )
    set_trained()
    if ranks.world > 1 or settings.microbatch is not None:
        refuse_batch_norm(model)
    moments = adamw(model, settings.optimizer)
    optimizer = AmpOptimizer(moments, compute, settings.optimizer.clip_norm, ranks)
    whole = ModelEncoder(model, loaded.name, features, "image" in method.trains, compute)

    # Of a batch in groups each process has whole ones, and needs no rows of the others.
    group = settings.contrast_group
    groups = 1 if group is None else batches.batch_size // group
    sharing = ranks if group is None else ALONE
    batches.preprocessor.ranks = sharing
    data: Dataset[Collated] = batches if group is None else Groups(batches, group, ranks)
    encoder = replace(whole, ranks=sharing, microbatch=settings.microbatch)

    modules = {"model": model}
    best: dict[str, Tensor] = {}  # weights of the best validation

    def restore() -> dict[str, Any] | None:
        if not read_matching_progress(state, fingerprint, overwrite=settings.overwrite):
            checkpoint.remove_state(state)
            return None
        best.update(checkpoint.read_best(state))
        return checkpoint.restore(state, modules, moments)

    progress = Progress()
    if saved := ranks.from_first(restore):
        if ranks.world > 1:
            tensors = ranks.tensors_from_first(checkpoint.tensors_of(modules, moments))
            checkpoint.load_tensors(tensors, modules, moments)
        optimizer.scaler.load_state_dict(saved["loss_scale"])
        progress = Progress.from_dict(saved["progress"])
        for name, values in saved["memory"].items():
            encoder.memory[name] = torch.tensor(values, device=device)
        log.info("%s: %d of %d steps are done.", state.stem, progress.step, planned)

    @contextmanager
    def evaluating(step: int) -> Iterator[LoadedModel]:
        """The model in evaluation mode, without gradients."""
        model.eval()
        own = loaded.image_fingerprint
        if encoder.image_trains:
            # Embeddings are shared by models of one image tower, and this is no longer the base's.
            own = f"{own} {method.name} at {step}"
        with torch.no_grad():
            yield replace(loaded, image_fingerprint=own)
        set_trained()

    done, waits = progress.step, list[float]()
    remaining = range(done, done if progress.finished else last)
    pending: list[dict[str, Tensor]] = []  # losses of the steps since the last reading
    shown: dict[str, float] = {}
    log_every = settings.log_every or min(25, math.ceil(last / 20))
    meter = Meter(planned, f"training {state.stem}", done=done)
    with meter, torch.random.fork_rng([device] if device.type == "cuda" else []):
        if validator is not None and done == 0:
            with evaluating(0) as base:
                progress.curve.append({"step": 0, **validator(base, whole)})
            report(progress.curve[-1])
        loader = DataLoader(
            data,
            batch_size=None,
            sampler=remaining,
            num_workers=settings.workers,
            pin_memory=device.type == "cuda",
        )
        ready = iter(loader)
        for step in range(done + 1, done + 1 + len(remaining)):
            asked = time.perf_counter()
            collated = next(ready)
            waits.append(time.perf_counter() - asked)
            # Towers with dropout draw from torch's global state: the same at a step of any run,
            # and not the same in two processes.
            place = [ranks.rank] if ranks.rank else []
            torch.manual_seed(digest(batches.seed, "step", step - 1, *place))
            if method.memory_lasts_an_epoch and (step - 1) % batches.steps_per_epoch == 0:
                encoder.memory.clear()
            losses: dict[str, Tensor] = {}
            for batch in [collated.batch] if group is None else collated.batch:
                terms = method.loss(encoder, moved(batch, device))
                loss = torch.stack([weight * value for value, weight in terms.values()]).sum()
                optimizer.backward(loss / groups)
                named = {"loss": loss, **{name: value for name, (value, _) in terms.items()}}
                if objective := method.objective_name(batch):
                    named[objective] = loss
                for name, value in named.items():
                    losses[name] = losses.get(name, 0) + value.detach() / groups
            if group is not None and encoder.memory and ranks.world > 1:
                raise SettingsError(
                    f"training.contrast_group: {method.name} carries values from one group to the "
                    "next, which the processes do not share; expected null, or one process "
                    "(training.distributed)"
                )
            rate = learning_rate(step - 1, planned, settings.optimizer)
            norm = optimizer.step(rate)
            clamp_scale(model)
            pending.append({**losses, "gradient_norm": norm.detach()})
            progress.counts.update(collated.counts)

            progress.finished = step == last
            every = log_every, settings.save_every, settings.validation.every
            logs, saves, validates = (n and (progress.finished or step % n == 0) for n in every)
            if logs or saves or validates:
                overflows = optimizer.overflow_is_normal()
                shown = _read_losses(pending, progress, overflows, settings, state, ranks) or shown
            meter.advance(**shown, lr=rate)
            if logs or validates:
                point = progress.add_point(lr=rate, scale=whole.scale.item())
                if validates and validator is not None:
                    with evaluating(step) as evaluated:
                        measured = validator(evaluated, whole)
                    refuse_non_finite(measured, step - 1, state=state, advice=ADVICE)
                    point |= measured
                    if settings.keep == "best" and best_point(progress.curve, settings) is point:
                        best = _trained_weights(model)
                if validates and steps is None:
                    progress.finished |= ranks.from_first(
                        lambda: stops_early(progress.curve, settings)
                    )
                if ranks.first:
                    report({**point, "data_wait": fmean(waits)})
                waits.clear()
            if ranks.first and (saves or progress.finished):
                content = {
                    "fingerprint": dict(fingerprint),
                    "progress": progress.as_dict(),
                    "loss_scale": optimizer.scaler.state_dict(),
                    "memory": {name: value.tolist() for name, value in encoder.memory.items()},
                }
                checkpoint.save(state, modules, moments, content, best, step=step, advice=ADVICE)
                if on_save is not None:
                    with evaluating(step) as evaluated:
                        on_save(step, evaluated)
            if progress.finished:
                break
    if best:
        model.load_state_dict({**model.state_dict(), **best})
    model.eval()
    return progress


def _read_losses(
    pending: list[dict[str, Tensor]],
    progress: Progress,
    overflow_is_normal: bool,
    settings: TrainingSettings,
    state: Path,
    ranks: Ranks,
) -> dict[str, float]:
    """Move the losses of the steps since the last reading to the progress, in one transfer.

    Returns the last finite loss.

    Raises:
        TrainingError: a loss or a gradient was not finite. No weight has changed by that step.
    """
    numbers = iter(torch.stack([value for step in pending for value in step.values()]).tolist())
    steps = [{name: next(numbers) for name in step} for step in pending]
    pending.clear()
    if settings.contrast_group is not None:
        # Each process trained on some groups; the norm of the gradient is equal in all.
        together, steps = zip(*ranks.gather_values(steps), strict=True), []
        for parts in together:
            total: Counter[str] = Counter()
            for part in parts:
                total.update(part)
            steps.append({**total, "gradient_norm": parts[0]["gradient_norm"]})
    shown: dict[str, float] = {}
    for losses in steps:
        if overflow_is_normal and non_finite(losses):
            progress.add_step({}, {"steps left out for overflow": 1})
            continue
        if not math.isfinite(losses["loss"]):
            del losses["gradient_norm"]  # only a consequence
        refuse_non_finite(losses, progress.step, state=state, advice=ADVICE)
        progress.add_step(losses, {})
        shown = {"loss": losses["loss"]}
    return shown


def _trained_weights(model: nn.Module) -> dict[str, Tensor]:
    """Copies, in main memory, of the trained weights and of all buffers."""
    frozen = {name for name, one in model.named_parameters() if not one.requires_grad}
    state = model.state_dict()
    return {name: state[name].to("cpu", copy=True) for name in state.keys() - frozen}
