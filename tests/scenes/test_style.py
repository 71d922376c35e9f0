"""A foreign look over images, and the real one's statistics given back."""

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from compo_pipeline.configuration import SettingsError, parse
from compo_pipeline.scenes.render import image
from compo_pipeline.scenes.style import AdainSettings, cast, towards
from compo_pipeline.scenes.world import COLOURS, World
from compo_pipeline.seeding import numpy_rng, rng

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
    pixels = numpy_rng(seed).integers(low, high, (*size, 3)).astype(np.uint8)
    pixels[..., 0] += 20
    return Image.fromarray(pixels)


CONTENT, REAL = noise(0, (40, 50), 90, 150), noise(1, (30, 60), 60, 190)


def test_full_weight_gives_the_real_ones_statistics() -> None:
    assert np.allclose(statistics(towards(CONTENT, REAL, 1.0)), statistics(REAL), atol=0.1)


def test_half_the_weight_is_half_way() -> None:
    half_way = (statistics(CONTENT) + statistics(REAL)) / 2
    assert np.allclose(statistics(towards(CONTENT, REAL, 0.5)), half_way, atol=0.1)


def test_no_weight_leaves_the_image() -> None:
    assert towards(CONTENT, REAL, 0.0) == CONTENT


def test_statistics_given_back_take_a_cast_away() -> None:
    """Of the same scene: what remains is what the cast cut off, and its softness."""
    for number, real in enumerate(SCENES):
        foreign = cast(real, 1.0, rng(number))
        mended = towards(foreign, real, 1.0)
        far, near = (np.abs(np.asarray(x, float) - real).mean() for x in (foreign, mended))
        assert near < 0.6 * far


def test_settings() -> None:
    with pytest.raises(SettingsError, match=r"adain.*weight must lie within 0 and 1, got 1\.5"):
        parse(AdainSettings, {"weight": 1.5}, "adain")
    with pytest.raises(SettingsError, match=r"adain\.space.*'pixels'"):
        parse(AdainSettings, {"space": "latents"}, "adain")
