"""Architecture of `scenes-base`, and its image tower, supervised by the renderer's ground truth.

Contrast with captions alone cannot teach a tower of this size to see in an hour on two cores;
ground truth can. The tower learns thing and colour of each patch, and, as linear readouts of the
normalised pooled embedding, what is there, where, how large and how patterned.

Shapes: m images, N things, P patches, D width of the joint space, W width of the trunk.
"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from open_clip.model import CLIP
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader

from compo_pipeline.core.compute import Compute, moved
from compo_pipeline.core.files import write_json
from compo_pipeline.core.progress import Meter
from compo_pipeline.core.stores import read_tensors
from compo_pipeline.models.loading import LoadedModel, load
from compo_pipeline.models.weights import CONFIG_FILE, RECORD_FILE, WEIGHTS_FILE
from compo_pipeline.training import checkpoint
from compo_pipeline.training.optimisation import AmpOptimizer, non_finite, refuse_non_finite
from compo_scenes.base_model.supervision import SIZE_NAMES, ImageBatches, Truth
from compo_scenes.settings import BaseRecipe, TowerRecipe
from compo_scenes.world import PATTERNS, World

READOUT_SCALE = 14.0  # a unit vector's entries are about 1/sqrt(D); readouts want them near 1
# Largest norm of the whole gradient.
CLIP_NORM = 1.0
IMAGE_SIZE = 64
WIDTH = 192
MODEL = {
    "embed_dim": WIDTH,
    "vision_cfg": {
        "timm_model_name": "xcit_nano_12_p8_224",
        "timm_model_pretrained": False,
        "timm_pool": "avg",
        "timm_proj": "linear",
        "image_size": IMAGE_SIZE,
    },
    "text_cfg": {
        "context_length": 77,
        "vocab_size": 49408,
        "width": 128,
        "heads": 4,
        "layers": 2,
    },
}
# Squashed, not cropped: the sides of a wide image must stay in it.
PREPROCESS = {
    "size": [IMAGE_SIZE, IMAGE_SIZE],
    "mean": [0.5, 0.5, 0.5],
    "std": [0.25, 0.25, 0.25],
    "interpolation": "bicubic",
    "resize_mode": "squash",
}


def build(seed: int, device: torch.device | str = "cpu") -> LoadedModel:
    """Build the base model with seeded random weights.

    It is written to a folder and loaded as any other model.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = CLIP(**MODEL)
    with tempfile.TemporaryDirectory() as folder:
        config = {"model_cfg": MODEL, "preprocess_cfg": PREPROCESS}
        write_json(Path(folder) / CONFIG_FILE, config)
        write_json(Path(folder) / RECORD_FILE, {"name": "scenes-base"})
        save_file(model.state_dict(), Path(folder) / WEIGHTS_FILE)
        return load(Path(folder), device)


class Readouts(nn.Module):
    """Linear readouts of ground truth from patch tokens and from the pooled embedding.

    Thing and colour are read from patch tokens.
    """

    def __init__(self, world: World, trunk_width: int, width: int) -> None:
        super().__init__()
        self.things, self.colours = len(world.things), len(world.colours)
        self.patch_kind = nn.Linear(trunk_width, self.things + 1)
        self.patch_colour = nn.Linear(trunk_width, self.colours + 1)
        self.pair = nn.Linear(width, self.things * self.colours)
        self.place = nn.Linear(width, self.things * 2)
        self.size = nn.Linear(width, self.things * len(SIZE_NAMES))
        self.pattern = nn.Linear(width, self.things * len(PATTERNS))

    def of_thing(self, readout: nn.Linear, embedding: Tensor, truth: Truth) -> Tensor:
        """A linear readout's values for each thing in the images [N, values per thing]."""
        values: Tensor = readout(embedding * READOUT_SCALE)
        return values.view(len(embedding), self.things, -1)[truth.owner, truth.kind]


def tokens(visual: Any, pixels: Tensor) -> Tensor:
    """Patch tokens [m, P, W] of the image trunk before pooling."""
    features: Tensor = visual.trunk.forward_features(pixels)
    return features[:, 1:]  # the class token goes unused: pooling is the mean of the patches


def binding_losses(readouts: Readouts, embedding: Tensor, truth: Truth) -> tuple[Tensor, Tensor]:
    """Losses of reading (thing, colour) pairs and places from pooled embeddings [m, D].

    The embeddings are normalised. The losses are cross entropy, summed over pairs, and mean squared
    error of places.
    """
    pairs = F.binary_cross_entropy_with_logits(
        readouts.pair(embedding * READOUT_SCALE), truth.pairs, reduction="none"
    )
    places = F.mse_loss(readouts.of_thing(readouts.place, embedding, truth), truth.place)
    return pairs.sum(1).mean(), places


def tower_loss(readouts: Readouts, patches: Tensor, embedding: Tensor, truth: Truth) -> Tensor:
    """Weighted sum of the image tower's losses on patches [m, P, W] and embeddings [m, D].

    The embeddings are normalised.
    """
    dense = torch.zeros((), device=patches.device)
    for readout, target in (
        (readouts.patch_kind, truth.patch_kind),
        (readouts.patch_colour, truth.patch_colour),
    ):
        weight = torch.ones(readout.out_features, device=patches.device)
        weight[-1] = 0.15  # most patches are background
        logits = readout(patches).float()
        dense = dense + F.cross_entropy(logits.flatten(0, 1), target.flatten(), weight)
    pairs, places = binding_losses(readouts, embedding, truth)
    size = F.cross_entropy(readouts.of_thing(readouts.size, embedding, truth), truth.size)
    pattern = F.cross_entropy(readouts.of_thing(readouts.pattern, embedding, truth), truth.pattern)
    return dense + 0.3 * pairs + 3 * places + 0.3 * (size + pattern)


def train_tower(
    loaded: LoadedModel,
    world: World,
    settings: TowerRecipe,
    compute: Compute,
    *,
    seed: int,
    file: Path,
) -> None:
    """Train the image tower of the base model, whose trunk is timm's, in place, and write it.

    Raises:
        TrainingError: a loss, its gradient or the result is not finite.
    """
    visual: Any = loaded.model.visual
    # Before the optimiser and its moments, which take the memory order of the weights.
    visual.to(memory_format=torch.channels_last)
    head = visual.head.proj
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        readouts = Readouts(world, head.in_features, head.out_features).to(head.weight.device)
    parameters = [*visual.parameters(), *readouts.parameters()]
    optimizer, amp_optimizer = optimizers(parameters, settings, compute)
    loader = _loader(loaded, world, settings, seed)
    visual.train()
    with Meter(settings.steps, "training the image tower") as meter:
        for step, (pixels, truth) in enumerate(loader):
            targets = moved(truth, head.weight.device)
            loss = _forward(loaded, readouts, pixels, targets, compute)
            meter.advance(loss=descend(loss, amp_optimizer, settings.rate(step), step))
    visual.eval()
    modules = {"visual": visual, "readouts": readouts}
    checkpoint.save(file, modules, optimizer, {}, step=settings.steps)


def _loader(
    loaded: LoadedModel, world: World, settings: TowerRecipe, seed: int
) -> DataLoader[tuple[Tensor, Truth]]:
    """Data loader of random image batches.

    The model is in evaluation mode.
    """
    visual: Any = loaded.model.visual
    device = visual.head.proj.weight.device
    blank = torch.zeros(1, 3, loaded.image_size, loaded.image_size, device=device)
    with torch.no_grad():
        patches = tokens(visual, blank).shape[1]
    batches = ImageBatches(
        world,
        seed=seed,
        batches=settings.steps,
        batch_size=settings.batch_size,
        size=loaded.image_size,
        grid=math.isqrt(patches),
        composites=settings.composites,
    )
    return DataLoader(
        batches,
        batch_size=None,
        sampler=range(settings.steps),
        num_workers=settings.workers,
        pin_memory=device.type == "cuda",
    )


def _forward(
    loaded: LoadedModel, readouts: Readouts, pixels: Tensor, truth: Truth, compute: Compute
) -> Tensor:
    """Loss of a batch of raw pixels [m, 3, H, W]."""
    visual: Any = loaded.model.visual
    device = truth.owner.device
    mean, std = (
        torch.tensor(v, device=device).view(3, 1, 1) * 255 for v in (loaded.mean, loaded.std)
    )
    inputs = ((pixels.to(device, non_blocking=True) - mean) / std).contiguous(
        memory_format=torch.channels_last
    )
    with compute.autocast():
        patches = tokens(visual, inputs)
        embedding = F.normalize(visual.head(patches.mean(1)).float(), dim=-1)
        return tower_loss(readouts, patches, embedding, truth)


def load_tower(loaded: LoadedModel, file: Path, world: World) -> Readouts:
    """Load a trained image tower into the base model, and return the readouts trained with it."""
    visual: Any = loaded.model.visual
    projection = visual.head.proj
    readouts = Readouts(world, projection.in_features, WIDTH).to(projection.weight.device)
    _, tensors = read_tensors(file)
    checkpoint.load_weights(tensors, {"visual": visual, "readouts": readouts})
    return readouts


def optimizers(
    trained: list[nn.Parameter], settings: TowerRecipe | BaseRecipe, compute: Compute
) -> tuple[torch.optim.AdamW, AmpOptimizer]:
    """AdamW optimiser over the parameters, and the `AmpOptimizer` that steps it in a precision."""
    adamw = torch.optim.AdamW(
        trained, settings.lr, (0.9, 0.98), weight_decay=settings.weight_decay, fused=True
    )
    return adamw, AmpOptimizer(adamw, compute, CLIP_NORM)


def descend(loss: Tensor, optimizer: AmpOptimizer, rate: float, step: int) -> float:
    """Take an optimiser step, counted from 0, and return the loss.

    Raises:
        TrainingError: the loss or its gradient is not finite; no weight has changed.
    """
    optimizer.backward(loss)
    norm = optimizer.step(rate)
    figures = {"loss": loss.item(), "gradient_norm": norm.item()}
    if non_finite(figures) and not optimizer.overflow_is_normal():
        refuse_non_finite(figures, step, state=None, advice="Set pretraining.device=cpu")
    return figures["loss"]
