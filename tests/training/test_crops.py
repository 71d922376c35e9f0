"""Random crops: bounds, determinism, and the same distribution as torchvision's."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from compo_pipeline.training.preprocessing import crop_box, random_resized_crop

SCALE = (0.9, 1.0)
SIDES = st.integers(1, 3000)


def image(width: int = 61, height: int = 47) -> Image.Image:
    noise = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(noise)


def test_the_part_is_cut_out_before_it_is_resized_bicubic() -> None:
    box = crop_box(61, 47, SCALE, random.Random(3))
    expected = image().crop(box).resize((32, 32), Image.Resampling.BICUBIC)
    cropped = random_resized_crop(image(), 32, SCALE, random.Random(3))
    assert (cropped.size, cropped.mode) == ((32, 32), "RGB")
    assert cropped == expected
    # Resizing with a box would let in pixels from beyond the crop.
    assert cropped != image().resize((32, 32), Image.Resampling.BICUBIC, box=box)


@given(width=SIDES, height=SIDES, seed=st.integers(0, 99), least=st.floats(0.01, 1))
def test_a_crop_lies_inside_the_image(width: int, height: int, seed: int, least: float) -> None:
    left, upper, right, lower = crop_box(width, height, (least, 1.0), random.Random(seed))
    assert 0 <= left < right <= width
    assert 0 <= upper < lower <= height


@pytest.mark.parametrize(
    ("width", "height", "box"),
    [(400, 100, (133, 0, 266, 100)), (100, 400, (0, 133, 100, 266)), (1, 1, (0, 0, 1, 1))],
)
def test_a_panorama_gives_its_centre(
    width: int, height: int, box: tuple[int, int, int, int]
) -> None:
    assert crop_box(width, height, SCALE, random.Random(0)) == box


@pytest.mark.parametrize("shape", [(640, 480), (480, 640), (300, 300)])
def test_distribution_is_that_of_torchvision(shape: tuple[int, int]) -> None:
    """Mean and deviation of every edge, over draws of both."""
    import torch
    from torchvision.transforms import RandomResizedCrop

    width, height = shape
    rng, draws = random.Random(0), 4000
    own = np.array([crop_box(width, height, SCALE, rng) for _ in range(draws)])
    blank = torch.empty(3, height, width)
    theirs = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for _ in range(draws):
            upper, left, down, across = RandomResizedCrop.get_params(
                blank, list(SCALE), [3 / 4, 4 / 3]
            )
            theirs.append((left, upper, left + across, upper + down))
    spread = np.array(theirs).std(axis=0)
    assert np.abs(own.mean(axis=0) - np.mean(theirs, axis=0)).max() < 5 * spread.max() / draws**0.5
    assert own.std(axis=0) == pytest.approx(spread, rel=0.12)
