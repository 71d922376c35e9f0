"""Text tower and image projection of `scenes-base`, with CLIP's weakness in attribute binding.

Contrast with short captions trains a small text tower and a linear projection of the finished
image tower together. Things and colours alone decide nearly every batch, so the projection drops
most of what tells which thing has which colour; readout losses of a small
weight keep it decodable. With the projection locked the text tower would learn binding at once, and
leave fine-tuning nothing to improve.

Shapes: m captions of a batch, n scenes, D width of the joint space.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compo_pipeline.core.compute import Compute, moved
from compo_pipeline.core.progress import Meter, track
from compo_pipeline.core.seeding import rng
from compo_pipeline.losses import contrastive
from compo_pipeline.models.encoding import clamp_scale, encode_images, encode_texts, scale_of
from compo_pipeline.models.loading import LoadedModel
from compo_scenes.base_model.image_tower import Readouts, binding_losses, descend, optimizers
from compo_scenes.base_model.supervision import boxes, truth
from compo_scenes.captions import alt_text
from compo_scenes.render import image
from compo_scenes.settings import BaseRecipe
from compo_scenes.world import Relation, Scene, World, exchanged_places, relation

log = logging.getLogger(__name__)


def pairs_of_scenes(world: World, count: int, seed: int) -> list[tuple[Scene, Scene | None]]:
    """Training scenes, each with a near-duplicate (places exchanged) if there is one.

    The near-duplicate is of the training split too.
    """
    stream = world.scenes(seed, "train", "base")
    drawn = []
    for _ in range(count):
        scene = next(stream)
        twin = exchanged_places(scene)
        drawn.append((scene, twin if twin and twin.split == "train" else None))
    return drawn


@torch.no_grad()
def embed_scenes(
    loaded: LoadedModel, scenes: Sequence[Scene], compute: Compute, what: str
) -> Tensor:
    """Normalised image embeddings [n, D] of rendered scenes, on the model's device."""
    parts = []
    loaded.model.eval()
    starts = range(0, len(scenes), 256)
    for start in track(starts, len(starts), what):
        shown = [loaded.preprocess(image(scene)) for scene in scenes[start : start + 256]]
        pixels = torch.stack(shown).to(compute.device)
        with compute.autocast():
            parts.append(encode_images(loaded.model, pixels))
    return torch.cat(parts)


class _Captioned:
    """Scenes and their near-duplicates, embedded once, and batches of captions drawn from them."""

    def __init__(
        self,
        loaded: LoadedModel,
        world: World,
        settings: BaseRecipe,
        compute: Compute,
        seed: int,
    ) -> None:
        self.settings, self.seed = settings, seed
        self.scenes: list[Scene] = []
        self.rows: list[list[int]] = []
        for scene, twin in pairs_of_scenes(world, settings.scenes, seed):
            pair = [scene] if twin is None else [scene, twin]
            self.rows.append(list(range(len(self.scenes), len(self.scenes) + len(pair))))
            self.scenes += pair
        what = f"embedding {len(self.scenes)} scenes"
        self.features = embed_scenes(loaded, self.scenes, compute, what)

    def batch(self, step: int) -> tuple[list[int], list[str]]:
        """Indices of a step's scenes, and a drawn caption of each scene."""
        random_ = rng(self.seed, "base", step)
        chosen: list[int] = []
        while len(chosen) < self.settings.batch_size:
            row = random_.choice(self.rows)
            both = len(row) > 1 and random_.random() < self.settings.duplicates
            chosen += row if both else [random_.choice(row)]
        chosen = chosen[: self.settings.batch_size]
        return chosen, [
            alt_text(self.scenes[i], random_, self.settings.mix).lower() for i in chosen
        ]


def train_base(
    loaded: LoadedModel,
    readouts: Readouts,
    world: World,
    settings: BaseRecipe,
    compute: Compute,
    *,
    seed: int,
) -> list[dict[str, float]]:
    """Train the base model's text tower and image projection in place.

    Returns the loss curve.

    It trains on the model's device.

    Returns:
        The curve of losses.

    Raises:
        TrainingError: a loss or its gradient is not finite.
    """
    data = _Captioned(loaded, world, settings, compute, seed)
    model: Any = loaded.model
    head = model.visual.head.proj
    device = head.weight.device
    projection = nn.Linear(head.out_features, head.out_features, bias=False).to(device)
    nn.init.eye_(projection.weight)
    trained = [p for name, p in model.named_parameters() if not name.startswith("visual.")]
    for module in (projection, readouts.pair, readouts.place):
        trained += list(module.parameters())
    _, amp_optimizer = optimizers(trained, settings, compute)
    model.train()
    curve = []
    with Meter(settings.steps, "training the base") as meter:
        for step in range(settings.steps):
            chosen, texts = data.batch(step)
            images = F.normalize(projection(data.features[chosen]), dim=-1)
            with compute.autocast():
                embedded = encode_texts(model, loaded.tokenize(texts).to(device))
            contrast = contrastive.clip(images, embedded, scale_of(model))
            shown = truth([boxes(data.scenes[i]) for i in chosen], world, 1)
            what, where = binding_losses(readouts, images, moved(shown, device))
            loss = contrast + settings.readout_weight * (what + 3 * where)
            descend(loss, amp_optimizer, settings.rate(step), step)
            clamp_scale(model)
            figures = {"contrast": contrast.item(), "what": what.item(), "where": where.item()}
            meter.advance(**figures)
            if step % 50 == 49:
                curve.append({"step": step + 1, **figures})
    with torch.no_grad():  # a projection behind a linear head is a linear head
        head.weight.copy_(projection.weight @ head.weight)
    model.eval()
    return curve


def probe(
    embeddings: Tensor,
    scenes: Sequence[Scene],
    held_out: Tensor,
    held_out_scenes: Sequence[Scene],
    world: World,
    *,
    steps: int = 1500,
) -> dict[str, float]:
    """Accuracies on held-out scenes of linear readouts trained on frozen embeddings [n, D].

    Returns:
        Accuracy of the colour of a named thing (chance: one over the number of colours), and of
        the relation (left, right, above, below) of two named things (chance .25).
    """
    width = embeddings.shape[1]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        readouts = Readouts(world, 1, width).to(embeddings.device)
    optimizer = torch.optim.AdamW(readouts.parameters(), 5e-3, weight_decay=0.0)
    all_truth = [boxes(scene) for scene in scenes]
    for step in track(range(steps), steps, "probing the embedding"):
        chosen = rng(0, "probe", step).sample(range(len(scenes)), min(512, len(scenes)))
        shown = truth([all_truth[i] for i in chosen], world, 1)
        what, where = binding_losses(readouts, embeddings[chosen], moved(shown, embeddings.device))
        for group in optimizer.param_groups:
            group["lr"] = 5e-3 * 0.5 * (1 + math.cos(math.pi * step / steps))
        optimizer.zero_grad()
        loss = what + 3 * where
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return _probe_scores(readouts, held_out, held_out_scenes, world)


@torch.no_grad()
def _probe_scores(
    readouts: Readouts, embeddings: Tensor, scenes: Sequence[Scene], world: World
) -> dict[str, float]:
    """Accuracies of readouts of colour and relation from embeddings of held-out scenes."""
    shown = moved(truth([boxes(scene) for scene in scenes], world, 1), embeddings.device)
    pair = readouts.of_thing(readouts.pair, embeddings, shown)
    place = readouts.of_thing(readouts.place, embeddings, shown).cpu()
    right, total, start = 0, 0, 0
    for scene in scenes:
        true = relation(*scene.things[:2]) if len(scene.things) > 1 else None
        if true in ("left", "right", "above", "below"):
            total += 1
            right += _read_relation(place[start], place[start + 1], scene) == true
        start += len(scene.things)
    return {
        "colour of a named thing": (pair.argmax(1) == shown.colour).float().mean().item(),
        "relation of two named things": right / max(1, total),
    }


def _read_relation(a: Tensor, b: Tensor, scene: Scene) -> Relation:
    """Spatial relation of two things, from their read places [2] in the squashed square.

    Distances are compared in the scene's own pixels.
    """
    across = float(b[0] - a[0]) * scene.width
    down = float(b[1] - a[1]) * scene.height
    if abs(across) > abs(down):
        return "left" if across > 0 else "right"
    return "above" if down > 0 else "below"
