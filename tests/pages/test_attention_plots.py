"""Grids: as many as are needed, in the colours they promise."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from compo_pipeline.pages.attention_plots import AttentionPanel, grids


def panel(base: np.ndarray, tuned: np.ndarray, size: int = 64) -> AttentionPanel:
    """A gray image."""
    pixels = np.full((size, size, 3), 0.5, np.float32)
    return AttentionPanel("a box", "a.jpg", pixels, base, tuned)


def pixels(figure: Figure) -> Image.Image:
    buffer = io.BytesIO()
    figure.savefig(buffer)
    return Image.open(buffer).convert("RGB")


def tints(grid: Image.Image) -> dict[str, np.ndarray]:
    """Mean colours of the four quarters of the last map of a grid of one row."""
    image = np.asarray(grid, float)
    height, width = image.shape[:2]
    # The map: right of three quarters of the width, between the titles and the colour bars.
    quarter = image[int(0.16 * height) : int(0.70 * height), int(0.78 * width) : int(0.98 * width)]
    h, w = quarter.shape[0] // 2, quarter.shape[1] // 2
    parts = {"nw": quarter[:h, :w], "ne": quarter[:h, w:], "sw": quarter[h:, :w]}
    return {name: part.reshape(-1, 3).mean(axis=0) for name, part in parts.items()}


UNIFORM = np.ones((4, 4), np.float32)


def test_green_is_more_violet_less_and_white_as_much() -> None:
    tuned = UNIFORM.copy()
    tuned[:2, :2], tuned[:2, 2:] = 1.4, 0.6
    (grid,) = grids([panel(UNIFORM, tuned)])
    found = tints(pixels(grid))
    red, green, blue = found["nw"]
    assert green > red + 20 and green > blue + 20
    red, green, blue = found["ne"]
    assert green < red - 20 and green < blue - 20
    assert np.ptp(found["sw"]) < 6


def test_names_are_no_formulas() -> None:
    named = replace(panel(UNIFORM, UNIFORM), image="price_$5_^$.jpg", phrase="a $1_^$ note")
    (grid,) = grids([named])
    assert pixels(grid)
