"""Small worlds to score: hand-made embeddings."""

from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch

from compo_pipeline.evaluation.embed import Embedded, Tokens, Vectors


def unit(values: Mapping[str, list[float]]) -> Vectors:
    rows = np.array(list(values.values()), dtype=np.float32)
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return Vectors(rows, {name: place for place, name in enumerate(values)})


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
