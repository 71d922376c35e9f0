"""The one training loop. It knows no method: batches come from a `Method`, losses go to a sum."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from compo_pipeline.methods.contract import Collated, LossTerms, Method
from compo_pipeline.models.encoding import clamp_scale, encode_images, encode_texts, scale_of
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.progress import Meter
from compo_pipeline.seeding import digest
from compo_pipeline.training import checkpoint, optimisation
from compo_pipeline.training.batches import Batches
from compo_pipeline.training.device import autocast, moved
from compo_pipeline.training.features import Features
from compo_pipeline.training.fingerprint import check
from compo_pipeline.training.finite import refuse_non_finite
from compo_pipeline.training.settings import TrainingSettings

log = logging.getLogger(__name__)

Point = dict[str, float]

ADVICE = "Lower training.optimizer.lr, or set training.precision=fp32"


@dataclass(frozen=True, eq=False)
class ModelEncoder:
    """A model's towers as methods see them.

    Towers compute in the precision given, losses in float32: bf16 rounds logits of a hundred to
    halves. A frozen image tower builds no graph.

    Attributes:
        model: on the device.
        features: of a frozen image tower; None encodes pictures as they come.
        image_trains: whether gradients reach the image tower.
        device: of the model.
        precision: bf16 or fp32.
    """

    model: nn.Module
    features: Features | None
    image_trains: bool
    device: torch.device
    precision: str

    @property
    def scale(self) -> Tensor:
        """exp(logit_scale), a scalar."""
        return scale_of(self.model)

    def images(self, images: Tensor) -> Tensor:
        """Normalised embeddings [m, D] of pixels, or of rows of precomputed features."""
        if self.features is not None:
            return self.features.values[images]
        graph = self.image_trains and torch.is_grad_enabled()
        with torch.set_grad_enabled(graph), autocast(self.device, self.precision):
            return encode_images(self.model, images)

    def texts(self, tokens: Tensor) -> Tensor:
        """Normalised embeddings [K, D] of token ids [K, T]."""
        with autocast(self.device, self.precision):
            return encode_texts(self.model, tokens)


@dataclass
class Progress:
    """How far a run has come; saved with the weights.

    Attributes:
        step: steps done.
        curve: points of the loss curves.
        counts: what batches reported (rows, rows without a negative, truncated texts, ...).
    """

    step: int = 0
    curve: list[Point] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    _sums: Counter[str] = field(default_factory=Counter)
    _times: Counter[str] = field(default_factory=Counter)

    def note(self, losses: Mapping[str, float], counts: Mapping[str, int]) -> None:
        """Take in a step."""
        self.step += 1
        self.counts.update(counts)
        self._sums.update(losses)
        self._times.update(losses.keys())

    def close(self, **others: float) -> Point:
        """A new point of the curves: means since the last one."""
        means = {name: self._sums[name] / self._times[name] for name in self._sums}
        self._sums.clear()
        self._times.clear()
        self.curve.append({"step": self.step, **others, **means})
        return self.curve[-1]

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready; sums of an unfinished window included, so that curves resume exactly."""
        windows = {"sums": dict(self._sums), "times": dict(self._times)}
        return {"step": self.step, "curve": self.curve, "counts": dict(self.counts), **windows}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Progress:
        """What `as_dict` gave."""
        return cls(
            values["step"],
            list(values["curve"]),
            Counter(values["counts"]),
            Counter(values["sums"]),
            Counter(values["times"]),
        )


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
) -> Progress:
    """Train a model in place, from the state on disk where there is one.

    Args:
        loaded: the model, on the device.
        method: collates and scores.
        batches: one a step.
        features: of a frozen image tower; None encodes pictures as they come.
        settings: the recipe.
        device: of the model.
        state: file to save to and resume from.
        fingerprint: of all that decides the outcome; a state of another one is refused.
        report: gets every new point of the curves.

    Raises:
        TrainingError: a loss or the gradient is not finite.
        FingerprintError: the state belongs to another configuration.
    """
    model = loaded.model
    optimisation.freeze(model, method.trains)
    optimizer = optimisation.adamw(model, settings.optimizer)
    progress = Progress()
    if check(state, fingerprint, overwrite=settings.overwrite):
        saved = checkpoint.restore(state, {"model": model}, optimizer)
        progress = Progress.from_dict(saved["progress"])
        log.info("%s: %d of %d steps are done.", method.name, progress.step, len(batches))
    trains_images = "image" in method.trains
    encoder = ModelEncoder(model, features, trains_images, device, settings.precision)
    remaining = range(progress.step, len(batches))
    with (
        Meter(len(batches), f"training {method.name}", done=progress.step) as meter,
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
    model.eval()
    return progress


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
