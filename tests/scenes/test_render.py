"""Images: what the record says, where it says, with soft edges."""

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from compo_pipeline.configuration.settings import SettingsError, parse
from compo_pipeline.run.seeding import rng
from compo_scenes.render import SceneAdainSettings, cast, image, mix_statistics, render
from compo_scenes.world import BACKGROUNDS, COLOURS, Scene, Thing, World


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


def test_every_drawn_box_of_the_world_shows_its_colour() -> None:
    """Random scenes: a solid box's centre, shade and light allowed for."""
    seen = 0
    world = World(things=("box", "star", "moon", "key"))
    for scene in itertools.islice(world.scenes(0, "train"), 60):
        for thing in scene.things:
            if thing.kind == "box" and thing.pattern == "solid" and thing.size_px < 90:
                nearest = min(
                    COLOURS,
                    key=lambda c: float(
                        np.abs(render(scene)[thing.y, thing.x].astype(float) - COLOURS[c]).sum()
                    ),
                )
                assert nearest == thing.colour
                seen += 1
    assert seen > 10


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


def test_an_image_is_rgb_of_the_scenes_size() -> None:
    scene = shown(box("red", 60, 50))
    assert image(scene).mode == "RGB"
    assert image(scene).size == (scene.width, scene.height)


SCENES = [image(scene) for scene in itertools.islice(World().scenes(0, "train"), 20)]


def statistics(image: Image.Image) -> NDArray[np.float64]:
    """Mean and standard deviation of each channel, [2, 3]."""
    pixels = np.asarray(image, np.float64)
    return np.stack([pixels.mean((0, 1)), pixels.std((0, 1))])


def sharpness(image: Image.Image) -> float:
    """The energy of its edges, measured against its contrast."""
    pixels = np.asarray(image, np.float64)
    return float(np.square(np.diff(pixels, axis=1)).mean() / pixels.var((0, 1)).mean())


def test_no_strength_changes_nothing() -> None:
    for real in SCENES:
        assert cast(real, 0.0, rng(0)) == real


def test_a_cast_shifts_every_channel_the_more_the_stronger() -> None:
    shifts = []
    for strength in (0.25, 0.5, 1.0):
        moved = [
            np.abs(statistics(cast(real, strength, rng(number)))[0] - statistics(real)[0])
            for number, real in enumerate(SCENES)
        ]
        shifts.append(np.mean(moved, axis=0))
    assert (shifts[2] > 5).all()
    assert (shifts[0] < shifts[1]).all() and (shifts[1] < shifts[2]).all()


def test_a_cast_is_softer() -> None:
    for number, real in enumerate(SCENES):
        assert sharpness(cast(real, 1.0, rng(number))) < 0.8 * sharpness(real)


def test_a_cast_is_the_draws_own() -> None:
    one, same, other = (cast(SCENES[0], 0.5, rng(seed)) for seed in (1, 1, 2))
    assert one == same
    assert one != other


@pytest.mark.parametrize(("strength", "least"), [(0.5, 0.99), (1.0, 0.9)])
def test_colours_keep_their_names(strength: float, least: float) -> None:
    palette = np.array(list(COLOURS.values()), np.float64)
    kept = []
    for number, colour in enumerate(COLOURS.values()):
        flat = Image.new("RGB", (8, 8), colour)
        for seed in range(50):
            pixel = np.asarray(cast(flat, strength, rng(seed, number)), np.float64)[4, 4]
            kept.append(np.square(palette - pixel).sum(1).argmin() == number)
    assert np.mean(kept) >= least


def noise(seed: int, size: tuple[int, int], low: int, high: int) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(low, high, (*size, 3)).astype(np.uint8)
    pixels[..., 0] += 20
    return Image.fromarray(pixels)


CONTENT, REAL = noise(0, (40, 50), 90, 150), noise(1, (30, 60), 60, 190)


def test_full_weight_gives_the_real_ones_statistics() -> None:
    assert np.allclose(statistics(mix_statistics(CONTENT, REAL, 1.0)), statistics(REAL), atol=0.1)


def test_half_the_weight_is_half_way() -> None:
    half_way = (statistics(CONTENT) + statistics(REAL)) / 2
    assert np.allclose(statistics(mix_statistics(CONTENT, REAL, 0.5)), half_way, atol=0.1)


def test_no_weight_leaves_the_image() -> None:
    assert mix_statistics(CONTENT, REAL, 0.0) == CONTENT


def test_statistics_given_back_take_a_cast_away() -> None:
    """Of the same scene: what remains is what the cast cut off, and its softness."""
    for number, real in enumerate(SCENES):
        foreign = cast(real, 1.0, rng(number))
        mended = mix_statistics(foreign, real, 1.0)
        far, near = (np.abs(np.asarray(x, float) - real).mean() for x in (foreign, mended))
        assert near < 0.6 * far


def test_settings() -> None:
    with pytest.raises(SettingsError, match=r"adain\.weight: .*\(got 1\.5\)"):
        parse(SceneAdainSettings, {"weight": 1.5}, "adain")
    with pytest.raises(SettingsError, match=r"adain\.space.*'pixels'"):
        parse(SceneAdainSettings, {"space": "latents"}, "adain")
