"""Trainings on the scenes that find what makes relations late, many at once.

    kedro run --pipelines=raw
    python benchmarks/relations_data.py
    python benchmarks/relations_search.py --question "Rows that ask first"
    python benchmarks/relations_results.py data/relations_search.jsonl

Trains each configuration of relations_search.yml with each of its seeds. Trainings of one length
and contrast run at once: their weights have a dimension of trainings, over which
`torch.func.vmap` maps the product's towers and losses. A line of the result is one training:
accuracy on validation items by step, and all validation figures of its weights mixed with the
base's. No test scene is looked at.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import yaml
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from compo_pipeline.losses import margin, negclip, sextuple
from compo_pipeline.losses.sextuple import NEGATIVE, REAL
from compo_pipeline.models.encoding import pool_texts, project, project_images, scale_of
from compo_pipeline.models.loading import load
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.training.optimisation import learning_rate
from compo_pipeline.training.settings import OptimizerSettings
from relations_data import DATA

PLAN, RUNS = Path(__file__).with_suffix(".yml"), Path("data/relations_search.jsonl")
WATCHED, WATCHED_ITEMS = ("replace_rel", "swap_obj", "swap_att"), 500
SHARES = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
FIRST, BETAS, EPS, CLIP = (1, 1, 0, 0), (0.9, 0.98), 1e-8, 1.0
PROJECTION, FROZEN = "visual.head.proj.weight", ("visual.trunk", "token_embedding", "logit_scale")
AT_ONCE, TEXTS = 72, 256

Weights = dict[str, Tensor]
Data = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Recipe:
    """One configuration; the defaults are the reference that others change."""

    steps: int = 450
    batch: int = 128
    rate: float = 2e-3
    warmup: float = 0.1  # share of the steps
    flat: bool = False  # the peak rate for 0.6 of the steps, in place of a cosine
    weight_decay: float = 0.05
    contrast: str = "sigmoid"  # or softmax, negclip, triplet_clip
    contrast_weight: float = 1.0
    margin: float = 0.1  # weights of losses
    pairs: float = 1.0
    distillation: float = 0.0
    scale: float | None = None  # of the logits; None: the base's
    bias: float = -12.0  # of the sigmoid
    first: int = 180  # steps on rows that ask for a relation alone
    asking: float | None = None  # share of such rows after them; None: as they are in the data
    kinds: tuple[float, ...] = FIRST  # odds of the data's kinds of edits after the first phase
    fixed: bool = False  # one edit a caption, drawn once
    scenes: int = 4000
    several: bool = False  # scenes of two or three things, none of one
    images: bool = True  # synthetic images
    negatives: bool = True
    positives: bool = True
    projection_rate: float = 1.0  # of the image projection, in shares of the rate
    projection_from: float = 0.0  # share of the steps before the projection trains
    whitening: float = 0.0  # power by which its initial output is whitened
    ema: float = 0.0  # decay of the average of weights that is evaluated
    l2: float = 0.0  # pull to the base's weights
    bf16: bool = True


def planned(
    plan: Path = PLAN, question: str | None = None
) -> Iterator[tuple[str, list[Recipe], list[int]]]:
    """Questions of the plan, or one of them, with configurations and seeds."""
    for part in yaml.safe_load(plan.read_text(encoding="utf-8")):
        if question in (None, part["question"]):
            changes = [{**part.get("common", {}), **change} for change in part["changes"]]
            yield part["question"], [recipe(one) for one in changes], part["seeds"]


def recipe(changes: Mapping[str, Any]) -> Recipe:
    """The reference with some values changed."""
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in changes.items()
    }
    return Recipe(**values)


def drawn(data: Data, one: Recipe, seed: int) -> NDArray[Any]:
    """Images and texts of a training [steps, 2, 3, batch]; real, negative, positive; -1: absent."""
    random = np.random.default_rng(seed)
    rows = data["rows_several" if one.several else "rows_any"][: one.scenes]
    possible = rows[:, 4::2] >= 0
    asking = np.flatnonzero(possible[:, :2].any(1))
    odds = np.array(one.kinds, float) * possible
    odds[odds.sum(1) == 0, -1] = 1
    if one.fixed:
        own = _pick(odds, np.random.default_rng(1000 + seed))
        asking = np.flatnonzero(own < 2)
    later = one.steps - one.first
    index = _dealt(asking, one.first, one.batch, random)
    if one.asking is None:
        rest = _dealt(np.arange(len(rows)), later, one.batch, random)
    else:
        others, count = np.setdiff1d(np.arange(len(rows)), asking), round(one.asking * one.batch)
        rest = np.hstack(
            [
                _dealt(asking, later, count, random),
                _dealt(others, later, one.batch - count, random),
            ]
        )
    index = np.concatenate([index, rest])
    if one.fixed:
        kind = own[index]
    else:
        asked = possible * np.array(FIRST, float)
        by_step = np.concatenate([asked[index[: one.first]], odds[index[one.first :]]])
        kind = _pick(by_step, random)
    chosen = rows[index]
    negative = np.take_along_axis(chosen[..., 4:], 2 * kind[..., None] + np.arange(2), axis=-1)
    if not one.negatives:
        negative[:] = -1
    positive = chosen[..., 2:4] if one.positives else np.full_like(negative, -1)
    found = np.stack([chosen[..., :2], negative, positive], axis=1).transpose(0, 3, 1, 2).copy()
    if not one.images:
        found[:, 0, 1:] = -1
    return found


def _pick(odds: NDArray[Any], random: np.random.Generator) -> NDArray[Any]:
    """One of the last dimension's entries, by their odds."""
    sums = odds.cumsum(-1)
    place = random.random((*odds.shape[:-1], 1)) * sums[..., -1:]
    chosen: NDArray[Any] = (place >= sums).sum(-1).clip(0, odds.shape[-1] - 1)
    return chosen


def _dealt(pool: NDArray[Any], steps: int, batch: int, random: np.random.Generator) -> NDArray[Any]:
    """Rows [steps, batch], in epochs of whole batches."""
    if not steps * batch:
        return np.zeros((steps, batch), int)
    epochs = -(-steps // (len(pool) // batch))
    whole = len(pool) // batch * batch
    dealt = [random.permutation(pool)[:whole] for _ in range(epochs)]
    return np.concatenate(dealt).reshape(-1, batch)[:steps]


class Towers(nn.Module):
    """Text tower and image projection of the base, on pooled images and cut token ids."""

    def __init__(self, model: nn.Module) -> None:
        """Take the model's modules."""
        super().__init__()
        self.model = model

    def forward(self, pooled: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Normalised embeddings of images and texts."""
        model: Any = self.model
        length = tokens.shape[1]
        x = model.token_embedding(tokens) + model.positional_embedding[:length]
        states = model.ln_final(model.transformer(x, attn_mask=model.attn_mask[:length, :length]))
        texts = project(pool_texts(model, states, tokens), model.text_projection)
        return project_images(model, pooled), F.normalize(texts.float(), dim=-1)


def loss(
    images: Tensor, texts: Tensor, there: tuple[Tensor, Tensor], values: Mapping[str, Tensor],
    contrast: str, used: Collection[str],
) -> Tensor:  # fmt: skip
    """A training's loss by the product's functions; `values` are its weights, scale and bias."""
    logits = sextuple.similarities(images, texts, values["scale"])
    if contrast == "sigmoid":
        total = sextuple.contrast(logits, values["bias"], *there)
    elif contrast == "softmax":
        total = sextuple.softmax_contrast(logits, *there)
    else:
        arguments = (texts[NEGATIVE], there[1][NEGATIVE], values["scale"])
        total = negclip.negclip(images[REAL], texts[REAL], *arguments)
        if contrast == "triplet_clip":
            total = total + _of_negatives(logits, there)
    total = values["contrast_weight"] * total
    if "margin" in used:
        ranked = margin.ranking(logits, *there, margin.Margins())
        total = total + values["margin"] * ranked
    if "pairs" in used:
        total = total + values["pairs"] * sextuple.pair_ranking(logits, *there)
    return total


def _of_negatives(logits: Tensor, there: tuple[Tensor, Tensor]) -> Tensor:
    """TripletCLIP's second loss: NegCLIP's, of the negative pairs that have an image."""
    whole = there[0][NEGATIVE] & there[1][NEGATIVE]
    own, least = logits[NEGATIVE, :, NEGATIVE], torch.finfo(logits.dtype).min
    columns = torch.cat([own.masked_fill(~whole, least), logits[NEGATIVE, :, REAL]], dim=1)
    to_text = columns.log_softmax(1)[:, : len(own)].diagonal()
    to_image = own.T.masked_fill(~whole, least).log_softmax(1).diagonal()
    losses = (to_text + to_image).masked_fill(~whole, 0.0)
    return -losses.sum() / 2 / whole.sum().clamp(min=1)


class Trainings:
    """Trainings of one length, batch and contrast, with the base that they start from."""

    def __init__(self, data: Data, runs: Sequence[tuple[Recipe, int]], device: str) -> None:
        """Stack the base's weights and the rows of all trainings."""
        self.recipes = [one for one, _ in runs]
        self.one, self.device = self.recipes[0], device
        model = load(ModelSettings(name="scenes-base")).model.eval().to(device)
        self.towers, scale = Towers(model), scale_of(model).item()
        self.pooled = self._to(data["pooled"].astype(np.float32))
        self.tokens = self._to(data["tokens"].astype(np.int64))
        self.items = {key: self._to(rows) for key, rows in data.items() if "/" in key}
        self.items["retrieval"] = self._to(data["retrieval"])
        self.base: Weights = {
            name: weight.detach()
            for name, weight in model.named_parameters()
            if not name.startswith(FROZEN)
        }
        self.values = {
            name: self._to(np.array([getattr(one, name) for one in self.recipes], np.float32))
            for name in ("contrast_weight", "margin", "pairs", "bias", "distillation")
        }
        scales = [one.scale or scale for one in self.recipes]
        self.values["scale"] = self._to(np.array(scales, np.float32))
        self.real = self._to(data["rows_any"][: Recipe().scenes, 0])
        self.rows = self._to(np.stack([drawn(data, *run) for run in runs], 1))
        self.weights = {
            name: torch.stack([self._start(name, one) for one in self.recipes])
            for name in self.base
        }

    def _to(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def _start(self, name: str, one: Recipe) -> Tensor:
        """A weight at the start: the base's, or its projection whitened."""
        weight = self.base[name]
        if name != PROJECTION or not one.whitening:
            return weight
        images = F.normalize(self.pooled[self.real] @ weight.T, dim=-1)
        values, axes = torch.linalg.eigh(torch.cov(images.T))
        ratio = values.clamp(min=1e-4 * values.max()) / values.max()
        whitening: Tensor = axes @ torch.diag(ratio**-one.whitening) @ axes.T
        return whitening @ weight

    def embed(self, weights: Weights, pooled: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings of one training's images and texts."""
        named = {f"model.{name}": weight for name, weight in weights.items()}
        images, texts = functional_call(self.towers, named, (pooled, tokens))
        return images, texts

    def _loss(self, weights: Weights, rows: Tensor, values: Weights) -> Tensor:
        """Loss of one training on one batch of rows [2, 3, n]."""
        numbers, shape = rows.clamp(min=0).flatten(1), rows.shape[1:]
        inputs = self.pooled[numbers[0]], self.tokens[numbers[1]]
        images, texts = (one.view(*shape, -1) for one in self.embed(weights, *inputs))
        there = (rows[0] >= 0, rows[1] >= 0)
        used = [name for name in ("margin", "pairs") if self.values[name].any()]
        total = loss(images, texts, there, values, self.one.contrast, used)
        if self.values["distillation"].any():
            teacher = [one.view(*shape, -1)[REAL] for one in self.embed(self.base, *inputs)]
            ours = values["scale"] * images[REAL] @ texts[REAL].T
            theirs = (values["scale"] * teacher[0] @ teacher[1].T).detach()
            total = total + values["distillation"] * (_kl(ours, theirs) + _kl(ours.T, theirs.T)) / 2
        return total

    def train(self, every: int) -> tuple[list[dict[str, Any]], Weights]:
        """Train all; returns accuracy by step, and the final weights or their averages."""
        steps, watched = self.one.steps, []
        first, second = ({k: torch.zeros_like(v) for k, v in self.weights.items()} for _ in "ab")
        average = {name: weight.clone() for name, weight in self.weights.items()}
        of = {
            name: self._to(np.array([getattr(one, name) for one in self.recipes], np.float32))
            for name in ("weight_decay", "l2", "ema", "projection_rate")
        }
        gradient = vmap(grad(self._loss))
        for step in range(steps):
            cast = torch.autocast(self.device, torch.bfloat16, enabled=self.one.bf16)
            with cast, sdpa_kernel(SDPBackend.MATH):
                gradients = gradient(self.weights, self.rows[step], self.values)
            norm = torch.stack([g.flatten(1).square().sum(1) for g in gradients.values()]).sum(0)
            clip = (CLIP / (norm.sqrt() + 1e-6)).clamp(max=1)
            rates = self._to(np.array([rate(step, one) for one in self.recipes], np.float32))
            on = self._to(np.array([step >= r.projection_from * steps for r in self.recipes]))
            for name, weight in self.weights.items():
                g = gradients[name] * _over(clip, weight)
                first[name].lerp_(g, 1 - BETAS[0])
                second[name].mul_(BETAS[1]).addcmul_(g, g, value=1 - BETAS[1])
                lr = rates * (of["projection_rate"] * on if name == PROJECTION else 1.0)
                if self.base[name].ndim >= 2:
                    weight.mul_(1 - _over(lr * of["weight_decay"], weight))
                weight.sub_(_over(lr * of["l2"], weight) * (weight - self.base[name]))
                mean = first[name] / (1 - BETAS[0] ** (step + 1))
                spread = (second[name] / (1 - BETAS[1] ** (step + 1))).sqrt() + EPS
                weight.sub_(_over(lr, weight) * mean / spread)
                average[name].lerp_(weight, _over(1 - of["ema"], weight))
            if (step + 1) % every == 0:
                watched.append({"step": step + 1, **self.watch()})
        return watched, average

    @torch.no_grad()
    def watch(self) -> dict[str, list[float]]:
        """Accuracy of each training on some items of the watched tasks."""
        found = {}
        for task in WATCHED:
            items = self.items[f"sugar_crepe/{task}"][:WATCHED_ITEMS]
            image, right, wrong = self._embedded(self.weights, items)
            found[task] = _per_cent(_nearer(image, right, wrong))
        return found

    def _embedded(self, weights: Weights, items: Tensor) -> list[Tensor]:
        """Embeddings [trainings, items, D] of columns of items: an image, then texts."""
        texts = items[:, 1:]
        return [self._images(weights, items[:, 0]), *self._texts(weights, texts).unbind(2)]

    def _images(self, weights: Weights, numbers: Tensor) -> Tensor:
        return F.normalize(self.pooled[numbers] @ weights[PROJECTION].transpose(1, 2), dim=-1)

    def _texts(self, weights: Weights, numbers: Tensor) -> Tensor:
        """Embeddings of texts [trainings, ..., D], those of their numbers [...]."""
        embed = vmap(lambda one, tokens: self.embed(one, self.pooled[:1], tokens)[1], (0, None))
        with sdpa_kernel(SDPBackend.MATH):
            parts = [
                embed(weights, self.tokens[some]) for some in torch.split(numbers.flatten(), TEXTS)
            ]
        found = torch.cat(parts, 1)
        return found.view(len(found), *numbers.shape, -1)

    @torch.no_grad()
    def evaluate(self, weights: Weights) -> dict[str, list[float]]:
        """All validation figures of each training."""
        found, itt, tot, to_text, to_image = {}, [], [], [], []
        for key, items in self.items.items():
            kind, _, name = key.partition("/")
            if kind == "sugar_crepe":
                found[name] = _per_cent(_nearer(*self._embedded(weights, items)))
            elif kind == "sugar_crepe_pp":
                image, one, two, wrong = self._embedded(weights, items)
                itt.append(_nearer(image, one, wrong) & _nearer(image, two, wrong))
                tot.append(_nearer(one, two, wrong) & _nearer(two, one, wrong))
            elif kind == "classes":
                prompts = self._texts(weights, self.items[f"prompts/{name}"])
                classes = F.normalize(prompts.mean(2), dim=-1).transpose(1, 2)
                nearest = (self._images(weights, items[:, 0]) @ classes).argmax(-1)
                found[f"zs_{name}"] = _per_cent(nearest == items[:, 1])
        for items in torch.split(self.items["retrieval"], 1000):
            image, text = self._embedded(weights, items)
            logits, own = image @ text.transpose(1, 2), torch.arange(len(items)).to(self.device)
            to_text.append(logits.argmax(2) == own)
            to_image.append(logits.argmax(1) == own)
        for name, parts in (("itt", itt), ("tot", tot), ("i2t", to_text), ("t2i", to_image)):
            found[name] = _per_cent(torch.cat(parts, 1))
        return found


def rate(step: int, one: Recipe) -> float:
    """Learning rate of a step."""
    least = 0.01 * one.rate
    settings = OptimizerSettings(lr=one.rate, lr_start=least, lr_end=least, warmup=one.warmup)
    cosine = learning_rate(step, one.steps, settings)
    rising = int(one.warmup * one.steps)
    if not one.flat or step < rising:
        return cosine
    left = 1 - (step - rising) / (one.steps - rising)
    return one.rate * min(1.0, max(0.01, left / 0.4))


def _kl(ours: Tensor, theirs: Tensor) -> Tensor:
    logs = ours.log_softmax(-1), theirs.log_softmax(-1)
    return F.kl_div(*logs, log_target=True, reduction="none").sum(-1).mean()


def _over(values: Tensor, like: Tensor) -> Tensor:
    """A value a training, shaped to multiply weights."""
    return values.view(-1, *[1] * (like.ndim - 1))


def _nearer(anchor: Tensor, right: Tensor, wrong: Tensor) -> Tensor:
    return (anchor * right).sum(-1) > (anchor * wrong).sum(-1)


def _per_cent(right: Tensor) -> list[float]:
    return [round(one, 2) for one in right.float().mean(1).mul(100).tolist()]


def together(runs: Sequence[tuple[Recipe, int]]) -> Iterator[list[tuple[Recipe, int]]]:
    """Trainings that may run at once: of one length, batch, contrast and precision."""
    groups = defaultdict(list)
    for one, seed in runs:
        extra = bool(one.distillation)  # computed for all of a group
        groups[one.steps, one.batch, one.contrast, one.bf16, extra].append((one, seed))
    for group in groups.values():
        yield from (group[k : k + AT_ONCE] for k in range(0, len(group), AT_ONCE))


def main() -> None:
    """Train the plan, or one question of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--question", help="one of relations_search.yml; all by default")
    parser.add_argument("--plan", type=Path, default=PLAN)
    parser.add_argument("--every", type=int, default=30, help="steps between two accuracies")
    arguments = parser.parse_args()
    with np.load(DATA) as stored:
        data = dict(stored)
    wanted = {
        (one, seed): None
        for _, recipes, seeds in planned(arguments.plan, arguments.question)
        for one in recipes
        for seed in seeds
    }
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for runs in together(list(wanted)):
        trainings = Trainings(data, runs, device)
        watched, weights = trainings.train(arguments.every)
        mixed = {
            share: trainings.evaluate(
                {
                    k: torch.lerp(v.expand_as(weights[k]), weights[k], share)
                    for k, v in trainings.base.items()
                }
            )
            for share in SHARES
        }
        with RUNS.open("a", encoding="utf-8") as file:
            for place, (one, seed) in enumerate(runs):
                content = {
                    "recipe": asdict(one),
                    "seed": seed,
                    "curve": [
                        {k: v if k == "step" else v[place] for k, v in point.items()}
                        for point in watched
                    ],
                    "figures": {
                        share: {name: values[place] for name, values in found.items()}
                        for share, found in mixed.items()
                    },
                }
                file.write(json.dumps(content) + "\n")
        print(f"{len(runs)} trainings of {trainings.one.steps} steps", flush=True)


if __name__ == "__main__":
    main()
