"""Composite images: sizes, order, axis, and halves squashed to exactly half."""

import pytest
from PIL import Image

from compo_pipeline.data.images.composites import Axis, axis_of, compose, half, join, orientation

RED, BLUE = (255, 0, 0), (0, 0, 255)


def flat(colour: tuple[int, int, int], width: int = 40, height: int = 30) -> Image.Image:
    return Image.new("RGB", (width, height), colour)


@pytest.mark.parametrize(
    ("width", "height", "named", "axis"),
    [
        (40, 30, "wide", "vertical"),
        (30, 40, "tall", "horizontal"),
        (30, 30, "wide", "vertical"),
    ],
)
def test_orientation_decides_the_axis(width: int, height: int, named: str, axis: Axis) -> None:
    assert orientation(width, height) == named
    assert axis_of(width, height) == axis


@pytest.mark.parametrize(("axis", "shape"), [("vertical", (64, 32)), ("horizontal", (32, 64))])
def test_a_half_is_the_whole_image_bicubic_at_exactly_half(
    axis: Axis, shape: tuple[int, int]
) -> None:
    noise = Image.effect_noise((50, 37), 90).convert("RGB")
    squashed = half(noise, axis, 64)
    assert squashed.size == shape
    assert squashed == noise.resize(shape, Image.Resampling.BICUBIC)
    assert squashed != noise.resize(shape, Image.Resampling.BILINEAR)


@pytest.mark.parametrize("axis", ["vertical", "horizontal"])
def test_a_composite_is_its_halves_joined(axis: Axis) -> None:
    a, b = (Image.effect_noise((50, 37), sigma).convert("RGB") for sigma in (40, 90))
    joined = compose(a, b, axis, 64)
    assert joined.size == (64, 64)
    assert joined == join(half(a, axis, 64), half(b, axis, 64), axis)
    box = (0, 0, 64, 32) if axis == "vertical" else (0, 0, 32, 64)
    assert joined.crop(box) == half(a, axis, 64)


def test_an_odd_size_has_no_half() -> None:
    with pytest.raises(ValueError, match="even size, the model's is 225"):
        half(flat(RED), "vertical", 225)
