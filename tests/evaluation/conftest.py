"""Small worlds to score: hand-made embeddings."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from compo_pipeline.evaluation.embed import Embedded, Tokens, Vectors


def unit(values: Mapping[str, list[float]]) -> Vectors:
    rows = np.array(list(values.values()), dtype=np.float32)
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return Vectors(rows, {name: place for place, name in enumerate(values)})


def write_noise(folder: Path, count: int) -> None:
    """Write images 0.png, 1.png, ... of 32 x 32 random pixels, no two alike."""
    for number in range(count):
        noise = np.random.default_rng(number).integers(0, 255, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(noise).save(folder / f"{number}.png")


@pytest.fixture
def embedded() -> Callable[..., Embedded]:
    """Builds what a model would make of images and texts, from vectors given by hand."""

    def build(
        images: Mapping[str, list[float]],
        texts: Mapping[str, list[float]],
        unreadable: Mapping[str, str] | None = None,
    ) -> Embedded:
        names = {text: place for place, text in enumerate(texts)}
        ids = torch.arange(len(texts)).reshape(-1, 1)
        tokens = Tokens(ids, np.zeros(len(texts), dtype=bool), names)
        return Embedded(unit(images), unreadable or {}, unit(texts), tokens)

    return build
