"""What the renderer knows about an image, as targets for the image tower.

m images, N things in all of them, P = n x n patches. Geometry is in the square input, 0..1.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from compo_pipeline.core.seeding import rng
from compo_pipeline.data.images.composites import axis_of, compose
from compo_scenes.render import image
from compo_scenes.world import PATTERNS, SIZES, Scene, World

SIZE_NAMES = tuple(SIZES)


class Truth(NamedTuple):
    """Ground truth of m images that show N things, as target tensors for training."""

    owner: Tensor  # [N] image of each thing
    kind: Tensor  # [N]
    colour: Tensor  # [N]
    place: Tensor  # [N, 2] centre in -1..1
    size: Tensor  # [N]
    pattern: Tensor  # [N]
    pairs: Tensor  # [m, kinds x colours] which (thing, colour) pairs are there
    patch_kind: Tensor  # [m, P], the number of kinds where a patch shows background
    patch_colour: Tensor  # [m, P], likewise


@dataclass(frozen=True)
class Box:
    """A thing with its bounding box in the model's square input, in coordinates 0..1."""

    kind: str
    colour: str
    size: str
    pattern: str
    x: float
    y: float
    width: float
    height: float


def boxes(scene: Scene, part: int | None = None) -> list[Box]:
    """Things of a scene with their boxes in the square input, or in one half of a composite.

    `part` (0, 1) is the half.
    """
    across, down, left, top = 1.0, 1.0, 0.0, 0.0
    if part is not None:
        if axis_of(scene.width, scene.height) == "vertical":
            down, top = 0.5, 0.5 * part
        else:
            across, left = 0.5, 0.5 * part
    return [
        Box(
            thing.kind,
            thing.colour,
            thing.size,
            thing.pattern,
            left + across * thing.x / scene.width,
            top + down * thing.y / scene.height,
            across * thing.size_px / scene.width,
            down * thing.size_px / scene.height,
        )
        for thing in scene.things
    ]


def _patch_targets(shown: list[Box], world: World, grid: int) -> tuple[NDArray[np.int64], ...]:
    """Thing and colour that cover most of each patch, or background below a fifth."""
    kinds = np.full((grid, grid), len(world.things))
    colours = np.full((grid, grid), len(world.colours))
    most = np.zeros((grid, grid))
    edges = np.arange(grid) / grid
    for box in shown:
        wide = np.minimum(edges + 1 / grid, box.x + box.width / 2)
        wide = (wide - np.maximum(edges, box.x - box.width / 2)).clip(0) * grid
        high = np.minimum(edges + 1 / grid, box.y + box.height / 2)
        high = (high - np.maximum(edges, box.y - box.height / 2)).clip(0) * grid
        cover = high[:, None] * wide[None]
        won = (cover >= most) & (cover >= 0.2)
        kinds[won] = world.things.index(box.kind)
        colours[won] = world.colours.index(box.colour)
        most = np.maximum(most, cover)
    return kinds.ravel(), colours.ravel()


def truth(shown: list[list[Box]], world: World, grid: int) -> Truth:
    """Training targets of images, from the things with boxes that each image shows."""
    flat = [(m, box) for m, row in enumerate(shown) for box in row]
    owner = torch.tensor([m for m, _ in flat])
    kind = torch.tensor([world.things.index(box.kind) for _, box in flat])
    colour = torch.tensor([world.colours.index(box.colour) for _, box in flat])
    pairs = torch.zeros(len(shown), len(world.things) * len(world.colours))
    pairs[owner, kind * len(world.colours) + colour] = 1
    patches = [_patch_targets(row, world, grid) for row in shown]
    return Truth(
        owner,
        kind,
        colour,
        torch.tensor([(2 * box.x - 1, 2 * box.y - 1) for _, box in flat]),
        torch.tensor([SIZE_NAMES.index(box.size) for _, box in flat]),
        torch.tensor([PATTERNS.index(box.pattern) for _, box in flat]),
        pairs,
        torch.from_numpy(np.stack([kinds for kinds, _ in patches])),
        torch.from_numpy(np.stack([colours for _, colours in patches])),
    )


def _draw_same_orientation(world: World, random_: random.Random, scene: Scene, split: str) -> Scene:
    """Draw another scene of the split with the same orientation, for a composite of both."""
    axis = axis_of(scene.width, scene.height)
    while True:
        other = world.draw(random_, "")
        if other.split == split and axis_of(other.width, other.height) == axis:
            return other


def show(
    world: World, random_: random.Random, split: str, composites: float, size: int
) -> tuple[NDArray[np.uint8], list[Box]]:
    """Draw an image [size, size, 3] of one scene or a composite of two, and its things' boxes."""
    scene = world.draw(random_, "")
    while scene.split != split:
        scene = world.draw(random_, "")
    if random_.random() >= composites:
        square = image(scene).resize((size, size), Image.Resampling.BICUBIC)
        return np.asarray(square), boxes(scene)
    other = _draw_same_orientation(world, random_, scene, split)
    axis = axis_of(scene.width, scene.height)
    joined = compose(image(scene), image(other), axis, size)
    return np.asarray(joined), boxes(scene, 0) + boxes(other, 1)


class ImageBatches(Dataset[tuple[Tensor, Truth]]):
    """Dataset of batches of randomly drawn images [m, 3, size, size] uint8 with their truth.

    Batch `i` is the same whenever and wherever it is drawn.
    """

    def __init__(
        self,
        world: World,
        *,
        seed: int,
        batches: int,
        batch_size: int,
        size: int,
        grid: int,
        composites: float,
        split: str = "train",
    ) -> None:
        self.world, self.seed, self.batches, self.batch_size = world, seed, batches, batch_size
        self.size, self.grid, self.composites, self.split = size, grid, composites, split

    def __len__(self) -> int:
        return self.batches

    def __getitem__(self, index: int) -> tuple[Tensor, Truth]:
        random_ = rng(self.seed, "tower", self.split, index)
        drawn = [
            show(self.world, random_, self.split, self.composites, self.size)
            for _ in range(self.batch_size)
        ]
        pixels = torch.from_numpy(np.stack([pixels for pixels, _ in drawn])).permute(0, 3, 1, 2)
        return pixels, truth([shown for _, shown in drawn], self.world, self.grid)
