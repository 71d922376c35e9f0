"""The one training loop: base model in, exported checkpoint of a method or its control out.

It knows no method by name: a `Method` makes batches and loss terms.
"""

from __future__ import annotations

import logging
import math
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from compo_pipeline.core.compute import moved
from compo_pipeline.core.progress import Meter
from compo_pipeline.core.seeding import digest
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.methods.clip import control_of
from compo_pipeline.methods.contract import Method
from compo_pipeline.models.encoding import MOST_SCALE, clamp_scale, scale_of
from compo_pipeline.models.loading import LoadedModel, export, give_bias, load
from compo_pipeline.models.weights import interpolate
from compo_pipeline.training import checkpoint, optimisation
from compo_pipeline.training.batches import Batches
from compo_pipeline.training.checkpoint import Point, Progress
from compo_pipeline.training.encoder import ModelEncoder
from compo_pipeline.training.features import Features, features_of, frozen_part
from compo_pipeline.training.inputs import TrainingInputs, fingerprint_of
from compo_pipeline.training.preprocessing import ModelPreprocessor
from compo_pipeline.training.ranks import ALONE, Ranks
from compo_pipeline.training.settings import TrainingSettings
from compo_pipeline.training.validation import Validator, best_point, deciding_figure, stops_early

# Name of the control's state file, of its curves and in logs.
CONTROL = "control"
ADVICE = "Lower training.optimizer.lr, or set training.precision=fp32"

log = logging.getLogger(__name__)


def no_control(method: Method, *, wanted: bool) -> str | None:
    """Reason why no control is trained beside a method, or None if a control is trained."""
    if not wanted:
        return "evaluation.control is off"
    # Plain fine-tuning would be compared with itself.
    return f"'{method.name}' is its own control" if control_of(method).name == method.name else None


@dataclass(frozen=True)
class Job:
    """One model to train: its method, name and checkpoint folder."""

    method: Method
    """The method, or the control of one."""

    name: str
    """Name of the state file, also in logs (`clic`, `control`)."""

    folder: Path
    """Folder of the checkpoint."""

    steps: int | None = None
    """Number of steps, by the schedule of all. None takes all, or stops early as configured."""


def jobs_of(
    method: Method, checkpoint: Path, control_checkpoint: Path, *, control: bool
) -> list[Job]:
    """The training jobs of a method and, if wanted, of its control.

    Args:
        method: the method.
        checkpoint: folder of the method's checkpoint.
        control_checkpoint: folder of the control's checkpoint.
        control: whether a control is wanted.
    """
    jobs = [Job(method, method.name, checkpoint)]
    if no_control(method, wanted=control) is None:
        jobs.append(Job(control_of(method), CONTROL, control_checkpoint))
    return jobs


def train_jobs(
    inputs: TrainingInputs,
    jobs: Sequence[Job],
    report: Callable[[str, Point], None],
    ranks: Ranks = ALONE,
) -> dict[str, Progress]:
    """Train the jobs one after another, and return the progress of each by name.

    Of a method that stopped early the control takes as many steps.

    Args:
        inputs: inputs of all jobs.
        jobs: the method, and the control where there is one.
        report: called with a job's name and each new point of its curves.
        ranks: processes that train together. Only the first one writes.
    """
    stops = inputs.settings.early_stopping.patience is not None
    done: dict[str, Progress] = {}
    for job in jobs:
        if done and stops:
            job = replace(job, steps=done[jobs[0].name].step)
        done[job.name] = train(inputs, job, partial(report, job.name), ranks=ranks)
    return done


def train(
    inputs: TrainingInputs,
    job: Job,
    report: Callable[[Point], None],
    on_save: Callable[[int, LoadedModel], None] | None = None,
    ranks: Ranks = ALONE,
) -> Progress:
    """Train the base model with a method, and export the checkpoint.

    Args:
        inputs: data, base model and recipe.
        job: the method, and the folder of the checkpoint.
        report: called with every new point of the curves.
        on_save: called with the step and the model, in eval mode, whenever its state has been
            saved; an exception of it ends the training.
        ranks: processes that train together. Only the first one reports, validates and writes.

    Raises:
        TrainingError: a loss, the gradient or a state to be saved is not finite.
        FingerprintError: the state on disk belongs to another configuration, or a process has
            another one than the first.
        SettingsError: the processes cannot share a batch, the model cannot be trained on parts of
            one, or the warm-up is as long as the training.
    """
    settings, method, compute = inputs.settings, job.method, inputs.compute
    loaded = _load_base(inputs, method)
    fingerprint = fingerprint_of(inputs, method, base=loaded.fingerprint, steps=job.steps)
    checkpoint.refuse_differing(ranks.gather_values((socket.gethostname(), fingerprint)))
    batches = Batches(
        inputs.captions,
        inputs.views,
        method,
        ModelPreprocessor(
            loaded,
            inputs.root,
            crop_scale=settings.crop_scale,
            counterfactual_images=inputs.counterfactual_images,
        ),
        settings,
        inputs.seed,
    )
    ranks.refuse_uneven(batches.batch_size, settings.contrast_group)

    def is_finished() -> bool:
        saved = checkpoint.read_matching_progress(
            inputs.state(job.name), fingerprint, overwrite=settings.overwrite
        )
        return saved is not None and saved["progress"]["finished"]

    features, part = None, frozen_part(inputs, method, loaded)
    if part is not None and not ranks.from_first(is_finished):
        features = features_of(batches, inputs, loaded, part == "trunk", ranks)
    if settings.lora.rank is not None:
        from compo_pipeline.models import lora  # it imports transformers: seconds

        adapters = settings.lora.rank, loaded.name, method.trains, inputs.seed
        lora.attach(loaded.model, *adapters, settings.lora.convolution)
    with torch.random.fork_rng():
        torch.manual_seed(digest(inputs.seed, "extension"))
        finish = method.extend(loaded.model, loaded.name)
    optimisation.speed_up(loaded.model, settings, compute.device)
    rows = filter(None, [f"{len(inputs.captions):,} rows", inputs.rows])
    size = f"batches of {batches.batch_size:,}, epochs: {settings.epochs}"
    log.info("%s: %s; %s steps (%s)", job.name, ", ".join(rows), f"{len(batches):,}", size)
    progress = fit(inputs, job, loaded, batches, features, fingerprint, report, on_save, ranks)
    if not ranks.first:
        return progress
    outcome, trained = _outcome(progress, len(batches), settings)
    counts = [f"{what} {count}" for what, count in progress.counts.items() if count]
    log.info("%s: %s; %s", job.name, trained, ", ".join(counts))
    finish()
    if settings.lora.rank is not None:
        lora.merge(loaded.model)
    ratio = settings.wise_ft.before_choice
    if ratio < 1:
        base, tuned = _load_base(inputs, method).model.state_dict(), loaded.model.state_dict()
        loaded.model.load_state_dict(interpolate(base, tuned, ratio))
    record = {
        "method": method.name,
        "wise_ft_ratio": ratio,
        "compute": compute.facts(),
        "fingerprint": fingerprint,
        "counts": dict(progress.counts),
        **outcome,
    }
    export(loaded, job.folder, metadata={"training": record})
    return progress


def fit(
    inputs: TrainingInputs,
    job: Job,
    loaded: LoadedModel,
    batches: Batches,
    features: Features | None,
    fingerprint: Mapping[str, Any],
    report: Callable[[Point], None],
    on_save: Callable[[int, LoadedModel], None] | None = None,
    ranks: Ranks = ALONE,
) -> Progress:
    """Train a model in place, starting from the state on disk if there is one.

    The model then has the weights of the last step or, where the recipe keeps the best, of the
    best validation. Arguments and errors are those of `train`, and these:

    Args:
        inputs: recipe, held-out rows and folder of the states.
        job: method, name and number of steps.
        loaded: the model, on the device.
        batches: batches of all steps.
        features: features of a frozen image tower. None encodes images at each step.
        fingerprint: hash of everything that determines the weights. A state with another one is
            refused.
        report: called with every new point of the curves.
        on_save: called with the step and the model.
        ranks: processes that train together.
    """
    settings, method, compute = inputs.settings, job.method, inputs.compute
    model, device, planned = loaded.model, compute.device, len(batches)
    state = inputs.state(job.name)
    last = planned if job.steps is None else min(job.steps, planned)
    optimisation.refuse_long_warmup(planned, settings.optimizer)
    set_trained = partial(
        optimisation.freeze, model, method.trains, scale=method.trains_scale, frozen=settings.frozen
    )
    set_trained()
    if ranks.world > 1 or settings.microbatch is not None:
        optimisation.refuse_batch_norm(model)
    moments = optimisation.adamw(model, settings.optimizer)
    optimizer = optimisation.AmpOptimizer(moments, compute, settings.optimizer.clip_norm, ranks)
    whole = ModelEncoder(model, loaded.name, features, "image" in method.trains, compute)
    validator = None
    if ranks.first and settings.validation.every is not None:
        validator = Validator(inputs, method, loaded, features)

    # Of a batch in groups each process has whole ones, and needs no rows of the others.
    batches.ranks, grouped = ranks, settings.contrast_group is not None
    sharing = ALONE if grouped else ranks
    batches.preprocessor.ranks = sharing
    groups = batches.batch_size // (settings.contrast_group or batches.batch_size)
    encoder = replace(whole, ranks=sharing, microbatch=settings.microbatch)

    modules = {"model": model}
    best: dict[str, Tensor] = {}  # weights of the best validation

    def restore() -> dict[str, Any] | None:
        if not checkpoint.read_matching_progress(state, fingerprint, overwrite=settings.overwrite):
            checkpoint.remove_state(state)
            return None
        found, kept = checkpoint.restore(state, modules, moments)
        best.update(kept)
        return found

    progress = Progress()
    if saved := ranks.from_first(restore):
        if ranks.world > 1:
            own = checkpoint.tensors_of(modules, moments)
            names = ranks.from_first(lambda: [*own])
            sent = {name: ranks.from_first(lambda: own[name].cpu()) for name in names}  # noqa: B023
            checkpoint.load_tensors(sent, modules, moments)
        optimizer.scaler.load_state_dict(saved["loss_scale"])
        progress = Progress.from_dict(saved["progress"])
        for name, values in saved["memory"].items():
            encoder.memory[name] = torch.tensor(values, device=device)
        log.info("%s: %d of %d steps are done.", job.name, progress.step, planned)

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
    pending: list[_Step] = []  # losses and counts of the steps since the last reading
    shown: dict[str, float] = {}
    log_every = settings.log_every or min(25, math.ceil(last / 20))
    meter = Meter(planned, f"training {job.name}", done=done)
    with meter, torch.random.fork_rng([device] if device.type == "cuda" else []):
        if validator is not None and done == 0:
            with evaluating(0) as base:
                progress.curve.append({"step": 0, **validator(base, whole)})
            report(progress.curve[-1])
        loader = DataLoader(
            batches,
            batch_size=None,
            sampler=remaining,
            num_workers=settings.workers,
            pin_memory=device.type == "cuda",
        )
        ready = iter(loader)
        for step in range(done + 1, done + 1 + len(remaining)):
            asked = time.perf_counter()
            collated_groups = next(ready)
            waits.append(time.perf_counter() - asked)
            # Towers with dropout draw from torch's global state: the same at a step of any run,
            # and not the same in two processes.
            place = [ranks.rank] if ranks.rank else []
            torch.manual_seed(digest(batches.seed, "step", step - 1, *place))
            if method.memory_lasts_an_epoch and (step - 1) % batches.steps_per_epoch == 0:
                encoder.memory.clear()
            losses, counts = dict[str, Tensor](), Counter[str]()
            for batch, counted in collated_groups:
                counts.update(counted)
                terms = method.loss(encoder, moved(batch, device))
                loss = torch.stack([weight * value for value, weight in terms.values()]).sum()
                optimizer.backward(loss / groups)
                named = {"loss": loss, **{name: value for name, (value, _) in terms.items()}}
                if objective := method.objective_name(batch):
                    named[objective] = loss
                for name, value in named.items():
                    losses[name] = losses.get(name, 0) + value.detach() / groups
            if grouped and encoder.memory and ranks.world > 1:
                raise SettingsError(
                    f"training.contrast_group: {method.name} carries values from one group to the "
                    "next, which the processes do not share; expected null, or one process "
                    "(training.distributed)"
                )
            rate = optimisation.learning_rate(step - 1, planned, settings.optimizer)
            norm = optimizer.step(rate)
            clamp_scale(model)
            pending.append(({**losses, "gradient_norm": norm.detach()}, counts))

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
                    optimisation.refuse_non_finite(measured, step - 1, state=state, advice=ADVICE)
                    point |= measured
                    if settings.keep == "best" and best_point(progress.curve, settings) is point:
                        best = _trained_weights(model)
                if validates and job.steps is None:
                    progress.finished |= ranks.from_first(
                        lambda: stops_early(progress.curve, settings)
                    )
                if ranks.first:
                    report({**point, "data_wait": fmean(waits)})
                waits.clear()
            if ranks.first and (saves or progress.finished):
                content = {
                    "fingerprint": dict(fingerprint),
                    "progress": vars(progress),
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


_Step = tuple[dict[str, Tensor], Counter[str]]


def _read_losses(
    pending: list[_Step],
    progress: Progress,
    overflow_is_normal: bool,
    settings: TrainingSettings,
    state: Path,
    ranks: Ranks,
) -> dict[str, float]:
    """Move losses and counts of the steps since the last reading to the progress, in one transfer.

    Returns the last finite loss.

    Raises:
        TrainingError: a loss or a gradient was not finite. No weight has changed by that step.
    """
    values = [value for losses, _ in pending for value in losses.values()]
    numbers = iter(torch.stack(values).tolist())
    steps = [({name: next(numbers) for name in losses}, counts) for losses, counts in pending]
    pending.clear()
    if settings.contrast_group is not None:
        # Each process trained on some groups; the norm of the gradient is equal in all.
        together, steps = zip(*ranks.gather_values(steps), strict=True), []
        for parts in together:
            total, counts = Counter[str](), Counter[str]()
            for losses, counted in parts:
                total.update(losses)
                counts.update(counted)
            steps.append(({**total, "gradient_norm": parts[0][0]["gradient_norm"]}, counts))
    shown: dict[str, float] = {}
    for losses, counts in steps:
        if overflow_is_normal and optimisation.non_finite(losses):
            progress.add_step({}, {**counts, "steps left out for overflow": 1})
            continue
        if not math.isfinite(losses["loss"]):
            del losses["gradient_norm"]  # only a consequence
        optimisation.refuse_non_finite(losses, progress.step, state=state, advice=ADVICE)
        progress.add_step(losses, counts)
        shown = {"loss": losses["loss"]}
    return shown


def _trained_weights(model: nn.Module) -> dict[str, Tensor]:
    """Copies, in main memory, of the trained weights and of all buffers."""
    frozen = {name for name, one in model.named_parameters() if not one.requires_grad}
    state = model.state_dict()
    return {name: state[name].to("cpu", copy=True) for name in state.keys() - frozen}


def _load_base(inputs: TrainingInputs, method: Method) -> LoadedModel:
    """Load the base model, with a logit_bias if the method needs one."""
    loaded = load(inputs.model, inputs.compute.device)
    scale = scale_of(loaded.model).item()
    if scale > MOST_SCALE:
        text = "%s: its scale of %.1f is cut to %g with the first step."
        log.warning(text, loaded.name, scale, MOST_SCALE)
    return loaded if method.bias is None else give_bias(loaded, method.bias)


def _outcome(
    progress: Progress, planned: int, settings: TrainingSettings
) -> tuple[dict[str, Any], str]:
    """Number of steps, and which step's weights are exported: JSON-ready, and as a text."""
    selected: dict[str, Any] = {"rule": "last", "step": progress.step}
    text = f"{progress.step} of {planned} steps"
    if settings.keep == "best":
        point, (name, _) = best_point(progress.curve, settings), deciding_figure(settings)
        step, value, base = int(point["step"]), point[name], progress.curve[0][name]
        selected = {"rule": "best", "step": step, "by": name, "value": value, "base": base}
        text += f", weights of step {step} ({name} {value:.4g}, base {base:.4g})"
    return {"steps": progress.step, "planned_steps": planned, "selected": selected}, text
