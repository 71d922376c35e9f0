"""The distance of p1 and p2, against a loop."""

import math
from typing import Literal

import pytest
import torch

from compo_pipeline.losses.unimodal import unimodal

FIRST = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
SECOND = torch.tensor([[0.0, 1.0], [0.0, 1.0]], dtype=torch.float64)


@pytest.mark.parametrize("norm", ["squared", "plain"])
def test_equals_the_loop(norm: Literal["squared", "plain"]) -> None:
    random_ = torch.Generator().manual_seed(0)
    a, b = (torch.randn(4, 3, generator=random_, dtype=torch.float64) for _ in range(2))
    distances = [
        sum((float(x) - float(y)) ** 2 for x, y in zip(p, q, strict=True))
        for p, q in zip(a, b, strict=True)
    ]
    if norm == "plain":
        distances = [math.sqrt(d) for d in distances]
    assert unimodal(a, b, norm).item() == pytest.approx(sum(distances) / 4, abs=1e-12)


def test_the_authors_squared_norm_is_the_default() -> None:
    assert unimodal(FIRST, SECOND).equal(unimodal(FIRST, SECOND, "squared"))


@pytest.mark.parametrize("norm", ["squared", "plain"])
def test_equal_embeddings_have_a_finite_gradient(norm: Literal["squared", "plain"]) -> None:
    first = FIRST.clone().requires_grad_()
    loss = unimodal(first, FIRST, norm)
    (gradient,) = torch.autograd.grad(loss, first)
    assert loss.item() == 0
    assert gradient.eq(0).all()
