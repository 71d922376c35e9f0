"""Grids: as many as are needed, in the colours they promise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from compo_pipeline.evaluation.analysis.localisation import Located
from compo_pipeline.presentation.attention_plots import ROWS, AttentionPanel, draw


def panel(
    base: np.ndarray, tuned: np.ndarray, region: bool = True, size: int = 64
) -> AttentionPanel:
    """A gray image; the thing fills its upper left quarter."""
    seen = np.zeros((size, size), np.float32)
    seen[: size // 2, : size // 2] = 1
    pixels = np.full((size, size, 3), 0.5, np.float32)
    row = Located("a.jpg", "a box", 0.25, 0.3, 0.4, 0.25, 1.0) if region else Located("a.jpg", "a")
    return AttentionPanel(
        "a box", "a.jpg", pixels, base, tuned, seen if region else None, (row, row)
    )


def tints(path: Path) -> dict[str, np.ndarray]:
    """Mean colours of the four quarters of the last map of a grid of one row."""
    image = np.asarray(Image.open(path).convert("RGB"), float)
    height, width = image.shape[:2]
    # The map: right of three quarters of the width, between the titles and the colour bars.
    quarter = image[int(0.16 * height) : int(0.70 * height), int(0.78 * width) : int(0.98 * width)]
    h, w = quarter.shape[0] // 2, quarter.shape[1] // 2
    parts = {"nw": quarter[:h, :w], "ne": quarter[:h, w:], "sw": quarter[h:, :w]}
    return {name: part.reshape(-1, 3).mean(axis=0) for name, part in parts.items()}


UNIFORM = np.ones((4, 4), np.float32)


def test_green_is_more_violet_less_and_white_as_much(tmp_path: Path) -> None:
    tuned = UNIFORM.copy()
    tuned[:2, :2], tuned[:2, 2:] = 1.4, 0.6
    (path,) = draw([panel(UNIFORM, tuned, region=False)], tmp_path)
    found = tints(path)
    red, green, blue = found["nw"]
    assert green > red + 20 and green > blue + 20
    red, green, blue = found["ne"]
    assert green < red - 20 and green < blue - 20
    assert np.ptp(found["sw"]) < 6


def test_names_are_no_formulas(tmp_path: Path) -> None:
    named = replace(panel(UNIFORM, UNIFORM), image="price_$5_^$.jpg", phrase="a $1_^$ note")
    assert draw([named], tmp_path)


def test_grids_hold_a_few_rows_each_and_replace_earlier_ones(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    many = [
        panel(UNIFORM, rng.random((4, 4), np.float32), region=bool(n % 2)) for n in range(ROWS + 1)
    ]
    paths = draw(many, tmp_path)
    assert [path.name for path in paths] == ["attention_01.png", "attention_02.png"]
    tall, short = (Image.open(path).size for path in paths)
    assert tall[1] > 3 * short[1] and abs(tall[0] - short[0]) < 20
    assert draw(many[:1], tmp_path) == paths[:1] and not paths[1].exists()
    assert draw([], tmp_path) == [] and not paths[0].exists()


@pytest.mark.parametrize(("size", "side"), [(64, 8), (378, 27), (600, 4)])
def test_images_of_any_size_are_drawn(tmp_path: Path, size: int, side: int) -> None:
    uniform = np.ones((side, side), np.float32)
    (path,) = draw([panel(uniform, uniform, size=size)], tmp_path)
    assert Image.open(path).size[0] > 1000


def test_the_outline_shows_where_the_thing_is(tmp_path: Path) -> None:
    images = []
    for region in (True, False):
        (path,) = draw([panel(UNIFORM, UNIFORM, region=region)], tmp_path)
        images.append(np.asarray(Image.open(path).convert("L"), float))
    height, width = images[0].shape
    maps = np.s_[int(0.2 * height) : int(0.7 * height), int(0.3 * width) :]
    assert images[0][maps].min() < 90 < images[1][maps].min()
