"""Images: what the record says, where it says, with soft edges."""

import itertools

import numpy as np
import pytest

from compo_scenes.render import render
from compo_scenes.shapes import SHAPES, sprite
from compo_scenes.world import (
    BACKGROUNDS,
    COLOURS,
    CONTAINERS,
    PATTERNS,
    THINGS,
    Scene,
    Thing,
    World,
)


def shown(*things: Thing, background: str = "white", shade: int = 0) -> Scene:
    return Scene("hand-placed", 120, 100, background, things, shade)


def box(colour: str, x: int, y: int, side: int = 40, pattern: str = "solid") -> Thing:
    return Thing("box", colour, "medium", pattern, x, y, side)


def near(pixel: np.ndarray, colour: tuple[int, int, int], most: float) -> bool:
    return bool(np.abs(pixel.astype(float) - np.array(colour)).max() <= most)


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("background", BACKGROUNDS)
def test_a_solid_box_has_its_colour_at_its_centre_and_the_background_around(
    colour: str, background: str
) -> None:
    pixels = render(shown(box(colour, 70, 30), background=background))
    assert pixels.shape == (100, 120, 3)
    assert near(pixels[30, 70], COLOURS[colour], 12)
    for y, x in ((30, 20), (80, 70), (99, 119)):
        assert near(pixels[y, x], BACKGROUNDS[background], 12)


def test_later_things_lie_on_top() -> None:
    pixels = render(shown(box("yellow", 60, 50, 90), box("blue", 60, 50, 30)))
    assert near(pixels[50, 60], COLOURS["blue"], 12)
    assert near(pixels[20, 60], COLOURS["yellow"], 20)


def test_a_thing_beyond_the_edge_is_cut_off() -> None:
    pixels = render(shown(box("red", 0, 0)))
    assert near(pixels[3, 3], COLOURS["red"], 16)
    assert near(pixels[60, 60], BACKGROUNDS["white"], 8)


def test_edge_pixels_lie_between_the_colours() -> None:
    """Along a row into a red ball on white, green falls in steps, not at once."""
    ball = Thing("ball", "red", "medium", "solid", 60, 50, 41)
    row = render(shown(ball))[40, 30:60, 1].astype(int)
    assert row[0] > 240
    assert row.min() < 60
    assert ((row > 80) & (row < 220)).any()


def test_patterns_are_drawn_in_a_second_colour() -> None:
    def second(pattern: str, background: str) -> float:
        pixels = render(shown(box("red", 60, 50, 60, pattern), background=background))
        inside = pixels[30:70, 40:80].reshape(-1, 3).astype(int)
        dark = background == "white"
        return float(((inside.max(1) < 80) if dark else (inside.min(1) > 200)).mean())

    for background in BACKGROUNDS:
        assert second("solid", background) == 0
        assert 0.3 < second("striped", background) < 0.6
        assert 0.1 < second("dotted", background) < 0.4


def test_the_same_record_gives_the_same_pixels() -> None:
    """Whatever was drawn in between: no cached array is painted on."""
    scenes = list(itertools.islice(World().scenes(0, "val"), 20))
    before = [render(scene) for scene in scenes]
    for scene, pixels in zip(reversed(scenes), reversed(before), strict=True):
        assert np.array_equal(render(scene), pixels)


def test_the_images_shade_lightens_the_background() -> None:
    dark, light = (render(shown(background="gray", shade=shade)) for shade in (-8, 8))
    assert set((light.astype(int) - dark).ravel()) == {16}


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
