"""Targets by hand, and batches of images that show what their truth says."""

import pytest
import torch
from torch.utils.data import DataLoader

from compo_scenes.base_model.supervision import Box, ImageBatches, boxes, truth
from compo_scenes.world import COLOURS, Scene, World


def test_boxes_of_a_squashed_image(wide: Scene) -> None:
    assert boxes(wide) == [
        Box("box", "blue", "medium", "solid", 0.25, 0.5, 0.25, 48 / 144),
        Box("star", "pink", "large", "dotted", 0.75, 0.75, 0.375, 0.5),
    ]


def test_truth_by_hand(world: World, wide: Scene) -> None:
    """Two images; the second is the lower half of a composite alone."""
    told = truth([boxes(wide), boxes(wide, 1)[:1]], world, grid=4)
    assert told.owner.tolist() == [0, 0, 1]
    assert told.kind.tolist() == [1, 2, 1]
    assert told.colour.tolist() == [2, 3, 2]
    assert told.size.tolist() == [1, 2, 1]
    assert told.pattern.tolist() == [0, 2, 0]
    assert told.place.tolist() == [[-0.5, 0.0], [0.5, 0.5], [-0.5, 0.5]]
    assert told.pairs.nonzero().tolist() == [[0, 1 * 4 + 2], [0, 2 * 4 + 3], [1, 1 * 4 + 2]]
    # The box spans 1/8..3/8 across and 1/3..2/3 down: a third of each of four patches.
    # The star spans 9/16..15/16 and 1/2..1: three quarters of each of four.
    assert told.patch_kind[0].view(4, 4).tolist() == [
        [4, 4, 4, 4],
        [1, 1, 4, 4],
        [1, 1, 2, 2],
        [4, 4, 2, 2],
    ]
    assert told.patch_colour[0].view(4, 4)[2].tolist() == [2, 2, 3, 3]
    # In the half it spans 2/3..5/6 down: a third of the row of patches 1/2..3/4, and of the last.
    assert told.patch_kind[1].view(4, 4).tolist() == [[4] * 4] * 4
    finer = truth([boxes(wide, 1)[:1]], world, grid=8).patch_kind[0].view(8, 8)
    assert (finer != 4).nonzero().tolist() == [[row, col] for row in (5, 6) for col in (1, 2)]


def batches(world: World, **changes: object) -> ImageBatches:
    settings = {"seed": 0, "batches": 4, "batch_size": 6, "composites": 0.5, **changes}
    return ImageBatches(world, size=64, grid=8, **settings)  # type: ignore[arg-type]


def test_a_batch_is_the_same_in_any_process_and_any_order(world: World) -> None:
    here = batches(world)
    backwards = [here[i] for i in reversed(range(4))][::-1]
    elsewhere = list(DataLoader(batches(world), batch_size=None, num_workers=2))
    for (pixels, told), (others, theirs) in zip(backwards, elsewhere, strict=True):
        assert pixels.equal(others)
        assert all(a.equal(b) for a, b in zip(told, theirs, strict=True))
    assert not backwards[0][0].equal(backwards[1][0])
    assert not here[0][0].equal(batches(world, seed=1)[0][0])


@pytest.mark.parametrize("composites", [0.0, 1.0])
def test_images_show_what_the_truth_says(world: World, composites: float) -> None:
    """At a box's centre lies its colour, half of a composite or not."""
    pixels, told = batches(world, batch_size=40, composites=composites)[0]
    assert pixels.shape == (40, 3, 64, 64)
    names = list(world.colours)
    seen = 0
    for n in ((told.kind == 1) & (told.pattern == 0)).nonzero().flatten().tolist():
        others = told.place[told.owner == told.owner[n]]
        if ((others - told.place[n]).abs().amax(1) < 0.2).sum() > 1:
            continue  # another thing lies within the box
        x, y = ((told.place[n] + 1) * 32).long().tolist()
        pixel = pixels[told.owner[n], :, y, x].float()
        nearest = min(names, key=lambda c: float((pixel - torch.tensor(COLOURS[c])).abs().sum()))
        assert nearest == names[told.colour[n]]
        assert told.patch_kind[told.owner[n]].view(8, 8)[y // 8, x // 8] == 1
        seen += 1
    assert seen > 5
    assert len(told.owner.unique()) == 40
    most = torch.bincount(told.owner).max()
    assert (most > 3) == (composites == 1.0)
