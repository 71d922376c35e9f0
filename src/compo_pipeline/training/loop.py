"""The one training loop. It knows no method by name: a `Method` makes batches and loss terms."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from compo_pipeline.configuration.settings import SettingsError
from compo_pipeline.methods.contract import Collated, Method
from compo_pipeline.models.encoding import clamp_scale
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.run.compute import Compute, moved
from compo_pipeline.run.progress import Meter, Waits
from compo_pipeline.run.seeding import digest
from compo_pipeline.training import checkpoint
from compo_pipeline.training.batches import Batches, Groups
from compo_pipeline.training.checkpoint import Point, Progress
from compo_pipeline.training.encoder import ModelEncoder
from compo_pipeline.training.features import Features
from compo_pipeline.training.fingerprint import read_matching_progress
from compo_pipeline.training.optimisation import (
    AmpOptimizer,
    PendingLosses,
    adamw,
    freeze,
    learning_rate,
    non_finite,
    refuse_batch_norm,
    refuse_long_warmup,
    refuse_non_finite,
    sum_losses,
)
from compo_pipeline.training.ranks import ALONE, Ranks
from compo_pipeline.training.settings import TrainingSettings
from compo_pipeline.training.validation import Selection, Validator

log = logging.getLogger(__name__)

ADVICE = "Lower training.optimizer.lr, or set training.precision=fp32"


@dataclass
class Training:
    """One training of a model: the loop, with batches, optimiser, validation and saved state."""

    loaded: LoadedModel
    """The model, on the device; trained in place."""

    method: Method
    """Collates batches and computes loss terms."""

    batches: Batches
    """One a step."""

    features: Features | None
    """Of a frozen image tower; None encodes images at each step."""

    settings: TrainingSettings
    """The recipe."""

    compute: Compute
    """Device and precision."""

    state: Path
    """File to save to and resume from; its name labels the progress."""

    fingerprint: Mapping[str, Any]
    """Of everything that determines the weights; a state of another one is refused."""

    report: Callable[[Point], None]
    """Called with every new point of the curves."""

    eval_callback: Callable[[int, LoadedModel], None] | None = None
    """Called with the step and the model, in eval mode, whenever the state has been saved."""

    validator: Validator | None = None
    """Measures the model every `settings.validation.every` steps and at the last."""

    steps: int | None = None
    """Number of steps, by the schedule of all; None takes all, or stops early as configured."""

    ranks: Ranks = ALONE
    """Processes that train together: the first one alone reports, validates and saves."""

    progress: Progress = field(init=False, default_factory=Progress)
    _best: dict[str, Tensor] = field(init=False, default_factory=dict)
    _losses: PendingLosses = field(init=False, default_factory=PendingLosses)
    _waits: Waits = field(init=False, default_factory=Waits)

    def __post_init__(self) -> None:
        """Freeze what does not train, make the optimiser of the rest, and share the batches.

        Raises:
            SettingsError: the model cannot be trained on parts of a batch, or the warm-up is as
                long as the training.
        """
        refuse_long_warmup(len(self.batches), self.settings.optimizer)
        settings, group = self.settings, self.settings.contrast_group
        self._freeze()
        if self.ranks.world > 1 or settings.microbatch is not None:
            refuse_batch_norm(self.loaded.model)
        self._adamw = adamw(self.loaded.model, settings.optimizer)
        self._optimizer = AmpOptimizer(
            self._adamw, self.compute, settings.optimizer.clip_norm, self.ranks
        )
        self._encoder = ModelEncoder(
            self.loaded.model, self.loaded.name, self.features, self._image_trains, self.compute
        )
        # Of a batch in groups each process has whole ones, and needs no rows of the others.
        sharing = self.ranks if group is None else ALONE
        self._loss_encoder = replace(self._encoder, ranks=sharing, microbatch=settings.microbatch)
        self.batches.preprocessor.ranks = sharing
        self._data: Dataset[Collated] = (
            self.batches if group is None else Groups(self.batches, group, self.ranks)
        )
        self._selection = Selection.from_settings(self.settings)
        self._last = len(self.batches) if self.steps is None else min(self.steps, len(self.batches))
        self._log_every = settings.log_every or min(25, math.ceil(self._last / 20))

    def run(self) -> Progress:
        """Train, starting from the state on disk if there is one; returns the progress.

        The model then has the weights of the last step or, where the recipe keeps the best, of the
        best validation.

        Raises:
            TrainingError: a loss, the gradient or a state to be saved is not finite.
            FingerprintError: the state belongs to another configuration.
        """
        self._resume()
        label, shown = f"training {self.state.stem}", dict[str, float]()
        device, every = self.compute.device, self.settings.validation.every
        own_rng = torch.random.fork_rng([device] if device.type == "cuda" else [])
        with Meter(len(self.batches), label, done=self.progress.step) as meter, own_rng:
            if self.validator is not None and self.progress.step == 0 and self.ranks.first:
                self._validate_base(self.validator)
            loader = self._waits.timed(self._loader())
            for step, collated in enumerate(loader, self.progress.step + 1):
                rate = self._optimise(step, collated)
                self.progress.finished = step == self._last
                logs = self._is_due(step, self._log_every)
                saves = self._is_due(step, self.settings.save_every)
                validates = every is not None and self._is_due(step, every)
                if logs or saves or validates:
                    shown = self._read_losses() or shown
                meter.advance(**shown, lr=rate)
                if logs or validates:
                    self._add_point(step, rate, validates)
                if self.ranks.first and (saves or self.progress.finished):
                    self._save(step)
                if self.progress.finished:
                    break
        if self._best:
            self.loaded.model.load_state_dict({**self.loaded.model.state_dict(), **self._best})
        self.loaded.model.eval()
        return self.progress

    def _resume(self) -> None:
        """Load the saved state that the first process reads, if any, in all processes."""
        saved = self.ranks.from_first(self._restore)
        if saved is None:
            return
        if self.ranks.world > 1:
            state = {"model": self.loaded.model}, self._adamw
            tensors = self.ranks.tensors_from_first(checkpoint.tensors_of(*state))
            checkpoint.load_tensors(tensors, *state)
        self._optimizer.load_state_dict(saved["loss_scale"])
        self.progress = Progress.from_dict(saved["progress"])
        device = self.compute.device
        for name, values in saved["memory"].items():
            self._encoder.memory[name] = torch.tensor(values, device=device)
        done, planned = self.progress.step, len(self.batches)
        log.info("%s: %d of %d steps are done.", self.state.stem, done, planned)

    def _restore(self) -> dict[str, Any] | None:
        """Load the state on disk, and return its progress dictionary; None without a state."""
        if not read_matching_progress(
            self.state, self.fingerprint, overwrite=self.settings.overwrite
        ):
            checkpoint.remove_state(self.state)
            return None
        self._best = checkpoint.read_best(self.state)
        return checkpoint.restore(self.state, {"model": self.loaded.model}, self._adamw)

    def _loader(self) -> DataLoader[Collated]:
        """Data loader of the remaining steps' batches.

        Worker processes make them, where there are some.
        """
        done = self.progress.step
        remaining = range(done, done if self.progress.finished else self._last)
        return DataLoader(
            self._data,
            batch_size=None,
            sampler=remaining,
            num_workers=self.settings.workers,
            pin_memory=self.compute.device.type == "cuda",
        )

    def _optimise(self, step: int, collated: Collated) -> float:
        """Take one optimiser step on a batch; returns its learning rate."""
        # Towers with dropout draw from torch's global state: the same at a step of any run, and
        # not the same in two processes.
        place = [self.ranks.rank] if self.ranks.rank else []
        torch.manual_seed(digest(self.batches.seed, "step", step - 1, *place))
        rate = learning_rate(step - 1, len(self.batches), self.settings.optimizer)
        if self.method.memory_lasts_an_epoch and (step - 1) % self.batches.steps_per_epoch == 0:
            self._encoder.memory.clear()
        losses: dict[str, Tensor] = {}
        norm = self._optimizer.step(self._group_losses(collated.batch, losses), rate)
        clamp_scale(self.loaded.model)
        self._losses.add(**losses, gradient_norm=norm)
        self.progress.counts.update(collated.counts)
        return rate

    def _group_losses(self, batch: Any, sums: dict[str, Tensor]) -> Iterator[Tensor]:
        """Yield the loss of each contrast group of a batch, and add its terms to `sums`."""
        size = self.settings.contrast_group
        groups, count = ([batch], 1) if size is None else (batch, self.batches.batch_size // size)
        for group in groups:
            terms = self.method.loss(self._loss_encoder, moved(group, self.compute.device))
            total = torch.stack([weight * value for value, weight in terms.values()]).sum() / count
            parts = {name: value / count for name, (value, _) in terms.items()}
            objective = self.method.objective_name(group)
            named = {objective: total} if objective else {}
            for name, part in {"loss": total, **parts, **named}.items():
                sums[name] = sums[name] + part.detach() if name in sums else part.detach()
            yield total
        if size is not None and self._encoder.memory and self.ranks.world > 1:
            raise SettingsError(
                f"training.contrast_group: {self.method.name} carries values from one group to the "
                "next, which the processes do not share; expected null, or one process "
                "(training.distributed)"
            )

    def _is_due(self, step: int, every: int) -> bool:
        """Whether an action that repeats every `every` steps is due; true after the last step."""
        return self.progress.finished or step % every == 0

    def _read_losses(self) -> dict[str, float]:
        """Add the losses since the last call to the progress; returns the last finite loss.

        Raises:
            TrainingError: a loss or a gradient was not finite. No weight has changed by that step.
        """
        steps, overflow_is_normal = self._losses.read(), self._optimizer.overflow_is_normal()
        if self.settings.contrast_group is not None:
            steps = [sum_losses(each) for each in zip(*self.ranks.gather_json(steps), strict=True)]
        shown: dict[str, float] = {}
        for losses in steps:
            if overflow_is_normal and non_finite(losses):
                self.progress.add_step({}, {"steps left out for overflow": 1})
                continue
            if not math.isfinite(losses["loss"]):
                del losses["gradient_norm"]  # only a consequence
            refuse_non_finite(losses, self.progress.step, state=self.state, advice=ADVICE)
            self.progress.add_step(losses, {})
            shown = {"loss": losses["loss"]}
        return shown

    def _add_point(self, step: int, rate: float, validates: bool) -> None:
        """Add a point to the loss curves, after a validation if one is due.

        A validation may store the best weights or end training.
        """
        point = self.progress.add_point(lr=rate, scale=self._encoder.scale.item())
        if validates:
            stops = self.ranks.from_first(lambda: self._validate(step, point))
            self.progress.finished |= stops
        if self.ranks.first:
            self.report({**point, "data_wait": self._waits.mean()})

    def _validate(self, step: int, point: Point) -> bool:
        """Add validation metrics to a point of the curves; returns whether training stops early."""
        assert self.validator is not None, "a validation is due only with a validator"
        with self._eval_mode(step) as evaluated:
            measured = self.validator(evaluated, self._encoder)
        refuse_non_finite(measured, step - 1, state=self.state, advice=ADVICE)
        point |= measured
        if self._selection.keeps_best and self._selection.best(self.progress.curve) is point:
            self._best = self._trained_weights()
        return self.steps is None and self._selection.stops(self.progress.curve)

    def _validate_base(self, validator: Validator) -> None:
        """Validate the base model, and add the result to the curves as step 0."""
        with self._eval_mode(0) as base:
            self.progress.curve.append({"step": 0, **validator(base, self._encoder)})
        self.report(self.progress.curve[-1])

    def _save(self, step: int) -> None:
        """Save the training state to disk, then run the eval callback if there is one."""
        saved = {
            "fingerprint": dict(self.fingerprint),
            "progress": self.progress.as_dict(),
            "loss_scale": self._optimizer.state_dict(),
            "memory": {name: value.tolist() for name, value in self._encoder.memory.items()},
        }
        modules = {"model": self.loaded.model}
        checkpoint.save(
            self.state, modules, self._adamw, saved, self._best, step=step, advice=ADVICE
        )
        if self.eval_callback is not None:
            with self._eval_mode(step) as evaluated:
                self.eval_callback(step, evaluated)

    @property
    def _image_trains(self) -> bool:
        """Whether the method trains the image tower."""
        return "image" in self.method.trains

    def _freeze(self) -> None:
        """Set which parameters get gradients, as the method and the settings say."""
        scale, frozen = self.method.trains_scale, self.settings.frozen
        freeze(self.loaded.model, self.method.trains, scale=scale, frozen=frozen)

    def _trained_weights(self) -> dict[str, Tensor]:
        """Copies, in main memory, of the trained weights and of all buffers."""
        model = self.loaded.model
        frozen = {name for name, one in model.named_parameters() if not one.requires_grad}
        state = model.state_dict()
        return {name: state[name].to("cpu", copy=True) for name in state.keys() - frozen}

    @contextmanager
    def _eval_mode(self, step: int) -> Iterator[LoadedModel]:
        """Context manager that gives the model in evaluation mode, without gradients."""
        loaded = self.loaded
        loaded.model.eval()
        if self._image_trains:
            # Embeddings are shared by models of one image tower, and this is no longer the base's.
            fingerprint = f"{loaded.image_fingerprint} {self.method.name} at {step}"
            loaded = replace(loaded, image_fingerprint=fingerprint)
        with torch.no_grad():
            yield loaded
        self._freeze()
