"""What the departures from the authors' code change, on the scenes.

    python benchmarks/departures.py --seeds 1

Trains, for each departure that a training can show, a method as it is here and as the authors'
code has it, with the same recipe but for that one thing, and compares both on the same test items.
A departure is a configuration, or a patch of this script where no key offers what the authors do.
Needs what `kedro run --pipelines=raw,ingest,validation` makes. Models and scores are stored under
data/*/scenes/departures and not made again. Differences are theirs minus ours; intervals are over
images, and over seeds where there are several. Writes benchmarks/results/departures.json and .md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor, nn

import study
import tables
from compo_pipeline.losses import calibrated
from compo_pipeline.models import lora
from compo_pipeline.storage.records import Score
from compo_pipeline.training.optimisation import AmpOptimizer
from compo_pipeline.training.preprocessing import ModelPreprocessor
from study import Arm, Study
from tables import Compared

OURS, THEIRS = "ours", "theirs"
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FIGURES = {("sugar_crepe", "accuracy", "swap_att"): "swapped attributes", **tables.COMMON}


@contextmanager
def bf16_weights() -> Iterator[None]:
    """Trained weights and the moments of AdamW are rounded to bf16 after each step."""
    step = AmpOptimizer.step

    def rounded_step(self: Any, *args: Any) -> Tensor:
        norm = step(self, *args)
        states = [self._optimizer.state[parameter] for parameter in self._trained]
        moments = [state[name] for state in states for name in ("exp_avg", "exp_avg_sq")]
        with torch.no_grad():
            for value in (*self._trained, *moments):
                value.copy_(value.bfloat16())
        return norm

    with mock.patch.object(AmpOptimizer, "step", rounded_step):
        yield


@contextmanager
def imagenet_composites() -> Iterator[None]:
    """Composites, and they alone, are normalised by the mean and deviation of ImageNet."""
    initialise = ModelPreprocessor.__init__

    def with_imagenet(self: Any, *args: Any, **kwargs: Any) -> None:
        initialise(self, *args, **kwargs)
        self.mean = torch.tensor(IMAGENET_MEAN).view(3, 1, 1) * 255
        self.std = torch.tensor(IMAGENET_STD).view(3, 1, 1) * 255

    with mock.patch.object(ModelPreprocessor, "__init__", with_imagenet):
        yield


@contextmanager
def zero_logits() -> Iterator[None]:
    """An absent hard negative stays in the choice with a logit of 0."""
    choice = calibrated.calibrated_loss

    def with_zeros(logits: Tensor, valid: Tensor, gamma: float, beta: float) -> Tensor:
        there = torch.cat([torch.ones_like(valid[:, :1]), valid], dim=1)
        return choice(logits * there, torch.ones_like(valid), gamma, beta)

    with mock.patch("compo_pipeline.methods.fsc_clip.calibrated_loss", with_zeros):
        yield


@contextmanager
def xavier_b() -> Iterator[None]:
    """The in-projections' B is drawn as their A is, so that the start is not the base."""
    reset = lora.FusedAttention.reset_lora_parameters

    def with_drawn_b(self: Any, adapter: str, init: Any) -> None:
        reset(self, adapter, init)
        nn.init.xavier_uniform_(self.lora_B[adapter].weight)

    with mock.patch.object(lora.FusedAttention, "reset_lora_parameters", with_drawn_b):
        yield


class Departure(NamedTuple):
    """A difference from the authors' code, as what a training here must change to have it."""

    name: str
    env: str
    method: str
    params: str = ""
    """Of ours and theirs, as kedro's."""

    theirs: str = ""
    """Of theirs alone."""

    patch: Callable[[], AbstractContextManager[None]] = nullcontext


DEPARTURES = (
    Departure(
        *("CLIC: all occurrences of a swapped word", "base", "clic"),
        theirs="clic.views.occurrence=all",
    ),
    Departure(
        *("CLIC: composites normalised by ImageNet's mean and deviation", "base", "clic"),
        params="training.cache_features=false",
        patch=imagenet_composites,
    ),
    Departure(
        *("FSC-CLIP: absent negatives with a logit of 0", "fsc_scenes", "fsc_clip"),
        patch=zero_logits,
    ),
    Departure(
        *("FSC-CLIP and SPARCL: B of the in-projections drawn", "fsc_scenes", "fsc_clip"),
        params="training.lora.rank=4,training.lora.convolution=loralib",
        patch=xavier_b,
    ),
    Departure(
        *("CE-CLIP: the intra-modal loss as published", "fsc_scenes", "ce_clip"),
        theirs="ce_clip.objective.intra_modal_negatives=first",
    ),
    Departure(
        *("CE-CLIP: thresholds from 0 in each epoch", "fsc_scenes", "ce_clip"),
        theirs="ce_clip.objective.reset_thresholds=true",
    ),
    Departure(
        *("C2LIP: weights and moments in bf16", "c2lip_scenes", "c2lip"),
        patch=bf16_weights,
    ),
)


def scores(departure: Departure, seed: int, split: str) -> list[Score]:
    """All scores of both models under a seed."""
    found = []
    for name, further, patch in (
        (OURS, "", nullcontext),
        (THEIRS, departure.theirs, departure.patch),
    ):
        params = ",".join(filter(None, (departure.params, further)))
        parameters = study.configured(departure.env, params)
        recipe = f"{departure.method}/{params or 'default'}".replace("=", "_")
        patched = "" if patch is nullcontext else f"/{patch.__name__}"
        parts = Study(f"departures/{recipe}{patched}", parameters, split)
        method = study.build(departure.method, parameters)
        with patch():
            for model, load in parts.trained(seed, {name: Arm(method, method)}):
                if model == name:
                    found += parts.scores(seed, name, load)
    return found


def markdown(found: Compared, seeds: int) -> list[str]:
    """The differences that each departure makes."""
    lines = [*tables.differences(found), tables.least_detectable(found)]
    return [
        "What training would change if it did as the authors' code (theirs - ours).",
        "",
        *tables.introduction(seeds),
        *tables.table(FIGURES.values(), lines),
    ]


def main() -> None:
    """Train and score what is missing, compare, write."""
    asked = study.arguments(__doc__.splitlines()[0]).parse_args()
    found: Compared = {}
    for departure in DEPARTURES:
        seeds = [scores(departure, seed, asked.split) for seed in range(asked.seeds)]
        found |= tables.tested(seeds, {departure.name: (THEIRS, OURS)}, FIGURES)
    content = {"seeds": asked.seeds, "theirs against ours": tables.plain(found)}
    tables.save("departures", asked.split, content, markdown(found, asked.seeds))


if __name__ == "__main__":
    main()
