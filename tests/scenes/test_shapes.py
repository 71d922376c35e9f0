"""Drawn things: solid bodies, soft edges, told apart from each other."""

import itertools

import numpy as np
import pytest

from compo_scenes.shapes import SHAPES, sprite
from compo_scenes.world import CONTAINERS, PATTERNS, THINGS


def test_every_thing_of_the_world_can_be_drawn() -> None:
    assert set(THINGS) <= set(SHAPES)
    assert set(CONTAINERS) <= set(THINGS)


@pytest.mark.parametrize("kind", SHAPES)
def test_edges_are_soft_and_the_body_is_solid(kind: str) -> None:
    """Anti-aliasing: some pixels lie between thing and background, most do not."""
    mask, light, _ = sprite(kind, 40, "solid")
    between = ((mask > 0.05) & (mask < 0.95)).mean()
    assert 0.01 < between < 0.3
    assert 0.1 < (mask > 0.95).mean() < 0.95
    assert light.min() > 0
    assert light.max() <= 1.1


def test_all_shapes_differ() -> None:
    masks = {kind: sprite(kind, 40, "solid")[0] for kind in SHAPES}
    for a, b in itertools.combinations(SHAPES, 2):
        assert np.abs(masks[a] - masks[b]).mean() > 0.04, (a, b)


@pytest.mark.parametrize("kind", SHAPES)
def test_patterns_differ_within_the_thing(kind: str) -> None:
    """Even of the thinnest, a tenth of the body takes the second colour, and a tenth does not."""
    body = sprite(kind, 40, "solid")[0] > 0.5
    for pattern in PATTERNS:
        share = float((sprite(kind, 40, pattern)[2][body] > 0.5).mean())
        assert share == 0 if pattern == "solid" else 0.1 < share < 0.9, (pattern, share)
