"""Attention of phrases over patches against a loop, and against what training pools by."""

from __future__ import annotations

import math

import pytest
import torch

from compo_pipeline.models.dense import attention

DRAW = torch.Generator().manual_seed(0)
PATCHES = 3 * torch.randn(2, 5, 4, generator=DRAW)
PHRASES = torch.nn.functional.normalize(torch.randn(3, 4, generator=DRAW), dim=-1)


@pytest.mark.parametrize("scale", [1.0, 40.0])
def test_it_is_a_softmax_of_cosines(scale: float) -> None:
    found = attention(PATCHES, scale * PHRASES)
    assert found.shape == (2, 3, 5)
    for m, image in enumerate(PATCHES):
        for k, phrase in enumerate(PHRASES):
            raised = [math.exp(scale * float(phrase @ p / p.norm())) for p in image]
            expected = [value / sum(raised) for value in raised]
            assert found[m, k].tolist() == pytest.approx(expected, rel=1e-4)
