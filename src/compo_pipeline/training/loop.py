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
from torch.utils.data import DataLoader

from compo_pipeline.compute import Compute, moved
from compo_pipeline.methods.contract import Collated, Method
from compo_pipeline.models.encoding import clamp_scale
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.progress import Meter
from compo_pipeline.seeding import digest
from compo_pipeline.training import checkpoint
from compo_pipeline.training.batches import Batches
from compo_pipeline.training.checkpoint import Point, Progress
from compo_pipeline.training.features import Features, ModelEncoder
from compo_pipeline.training.fingerprint import check
from compo_pipeline.training.optimisation import (
    AmpOptimizer,
    PendingLosses,
    adamw,
    freeze,
    learning_rate,
    non_finite,
    refuse_non_finite,
)
from compo_pipeline.training.settings import TrainingSettings
from compo_pipeline.training.validation import Selection, Validator

log = logging.getLogger(__name__)

ADVICE = "Lower training.optimizer.lr, or set training.precision=fp32"


@dataclass
class Training:
    """One training: its model, batches and state. `run` is the loop."""

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

    progress: Progress = field(init=False, default_factory=Progress)
    _best: dict[str, Tensor] = field(init=False, default_factory=dict)
    _losses: PendingLosses = field(init=False, default_factory=PendingLosses)

    def __post_init__(self) -> None:
        """Freeze what does not train, and make the optimiser of the rest."""
        self._freeze()
        self._adamw = adamw(self.loaded.model, self.settings.optimizer)
        self._optimizer = AmpOptimizer(self._adamw, self.compute, self.settings.optimizer.clip_norm)
        self._encoder = ModelEncoder(
            self.loaded.model, self.loaded.name, self.features, self._image_trains, self.compute
        )
        self._selection = Selection.of(self.settings)
        self._last = len(self.batches) if self.steps is None else min(self.steps, len(self.batches))

    def run(self) -> Progress:
        """Train, from the state on disk where there is one.

        The model then has the weights of the last step or, where the recipe keeps the best, of the
        best validation.

        Raises:
            TrainingError: a loss, the gradient or a state to be saved is not finite.
            FingerprintError: the state belongs to another configuration.
        """
        self._resume()
        label, shown = f"training {self.state.stem}", dict[str, float]()
        with Meter(len(self.batches), label, done=self.progress.step) as meter, self._own_rng():
            if self.validator is not None and self.progress.step == 0:
                self._validate_base(self.validator)
            for step, collated in enumerate(self._loader(), self.progress.step + 1):
                rate = self._optimise(step, collated)
                self.progress.finished = step == self._last
                logs = self._is_due(step, self.settings.log_every)
                saves = self._is_due(step, self.settings.save_every)
                validates = self._validator_due(step)
                if logs or saves or validates:
                    shown = self._read_losses() or shown
                meter.advance(**shown, lr=rate)
                if logs or validates:
                    self._add_point(step, rate, validates)
                if saves or self.progress.finished:
                    self._save(step)
                if self.progress.finished:
                    break
        if self._best:
            self.loaded.model.load_state_dict({**self.loaded.model.state_dict(), **self._best})
        self.loaded.model.eval()
        return self.progress

    def _resume(self) -> None:
        if not check(self.state, self.fingerprint, overwrite=self.settings.overwrite):
            checkpoint.remove(self.state)
            return
        saved = checkpoint.restore(self.state, {"model": self.loaded.model}, self._adamw)
        self._optimizer.load_state_dict(saved["loss_scale"])
        self.progress = Progress.from_dict(saved["progress"])
        device = self.compute.device
        for name, values in saved["memory"].items():
            self._encoder.memory[name] = torch.tensor(values, device=device)
        self._best = checkpoint.read_best(self.state)
        log.info(
            "%s: %d of %d steps are done.",
            *(self.state.stem, self.progress.step, len(self.batches)),
        )

    @contextmanager
    def _own_rng(self) -> Iterator[None]:
        """Leave torch's global random state as it was."""
        device = self.compute.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield

    def _loader(self) -> DataLoader[Collated]:
        """Batches of the remaining steps, made by worker processes where there are some."""
        done = self.progress.step
        remaining = range(done, done if self.progress.finished else self._last)
        return DataLoader(
            self.batches,
            batch_size=None,
            sampler=remaining,
            num_workers=self.settings.workers,
            pin_memory=self.compute.device.type == "cuda",
        )

    def _optimise(self, step: int, collated: Collated) -> float:
        """Take an optimiser step; its learning rate."""
        # Towers with dropout draw from torch's global state: the same at a step of any run.
        torch.manual_seed(digest(self.batches.seed, "step", step - 1))
        rate = learning_rate(step - 1, len(self.batches), self.settings.optimizer)
        terms = self.method.loss(self._encoder, moved(collated.batch, self.compute.device))
        total = torch.stack([weight * value for value, weight in terms.values()]).sum()
        norm = self._optimizer.step(total, rate)
        clamp_scale(self.loaded.model)
        losses = {name: value for name, (value, _) in terms.items()}
        self._losses.add(loss=total, **losses, gradient_norm=norm)
        self.progress.counts.update(collated.counts)
        return rate

    def _is_due(self, step: int, every: int | None) -> bool:
        return self.progress.finished or (every is not None and step % every == 0)

    def _validator_due(self, step: int) -> bool:
        return self.validator is not None and self._is_due(step, self.settings.validation.every)

    def _read_losses(self) -> dict[str, float]:
        """Read the losses since the last reading into the progress; the last finite one.

        Raises:
            TrainingError: a loss or a gradient was not finite. No weight has changed by that step.
        """
        steps, overflow_is_normal = self._losses.read(), self._optimizer.overflow_is_normal()
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
        """Add a point to the curves, and decide by a validation what it is to decide."""
        point = self.progress.add_point(lr=rate, scale=self._encoder.scale.item())
        if validates and self.validator is not None:
            with self._eval_mode(step) as evaluated:
                measured = self.validator(evaluated, self._encoder)
            refuse_non_finite(measured, step - 1, state=self.state, advice=ADVICE)
            point |= measured
            if self._selection.keeps_best and self._selection.best(self.progress.curve) is point:
                self._best = self._trained_weights()
            if self.steps is None:
                self.progress.finished |= self._selection.stops(self.progress.curve)
        self.report(point)

    def _validate_base(self, validator: Validator) -> None:
        """Add the base model's point to the curves."""
        with self._eval_mode(0) as base:
            self.progress.curve.append({"step": 0, **validator(base, self._encoder)})
        self.report(self.progress.curve[-1])

    def _save(self, step: int) -> None:
        """Save the state, and run the eval callback."""
        saved = {
            "fingerprint": dict(self.fingerprint),
            "progress": self.progress.as_dict(),
            "loss_scale": self._optimizer.state_dict(),
            "memory": {name: value.tolist() for name, value in self._encoder.memory.items()},
        }
        checkpoint.save(
            *(self.state, {"model": self.loaded.model}, self._adamw, saved, self._best),
            step=step,
            advice=ADVICE,
        )
        if self.eval_callback is not None:
            with self._eval_mode(step) as evaluated:
                self.eval_callback(step, evaluated)

    @property
    def _image_trains(self) -> bool:
        return "image" in self.method.trains

    def _freeze(self) -> None:
        """Let gradients reach what the method and the recipe train."""
        scale, frozen = self.method.trains_scale, self.settings.frozen
        freeze(self.loaded.model, self.method.trains, scale=scale, frozen=frozen)

    def _trained_weights(self) -> dict[str, Tensor]:
        """Copies, in main memory, of all weights and buffers but the frozen weights."""
        model = self.loaded.model
        frozen = {name for name, one in model.named_parameters() if not one.requires_grad}
        state = model.state_dict()
        return {name: state[name].to("cpu", copy=True) for name in state.keys() - frozen}

    @contextmanager
    def _eval_mode(self, step: int) -> Iterator[LoadedModel]:
        """The model in eval mode, without gradients."""
        loaded = self.loaded
        loaded.model.eval()
        if self._image_trains:
            # Embeddings are shared by models of one image tower, and this is no longer the base's.
            fingerprint = f"{loaded.image_fingerprint} {self.method.name} at {step}"
            loaded = replace(loaded, image_fingerprint=fingerprint)
        with torch.no_grad():
            yield loaded
        self._freeze()
