"""Positives against a row's own negative, against a loop."""

import math

import pytest
import torch
from tests.losses.draws import number, unit
from torch import Tensor

from compo_pipeline.losses.hard_negative import s_neg


def slow(
    images: Tensor, positives: Tensor, negatives: Tensor, valid: list[bool], scale: float
) -> float:
    """Eq. 5: cross entropy over [u.p, u.n] with target 0, row by row."""
    losses = []
    for texts in positives:
        for i, has_negative in enumerate(valid):
            if has_negative:
                right = math.exp(scale * float(images[i] @ texts[i]))
                wrong = math.exp(scale * float(images[i] @ negatives[i]))
                losses.append(-math.log(right / (right + wrong)))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("valid", [[True] * 4, [True, False, True, False], [False] * 3 + [True]])
@pytest.mark.parametrize("positives", [1, 4])
def test_s_neg_equals_the_loop(valid: list[bool], positives: int) -> None:
    u, p, n = unit(4, 5), unit(positives, 4, 5, seed=1), unit(4, 5, seed=2)
    got = s_neg(u, p, n, torch.tensor(valid), number(12.0))
    assert got.item() == pytest.approx(slow(u, p, n, valid, 12.0), abs=1e-12)


def test_a_row_without_a_negative_takes_no_part() -> None:
    """Whatever stands in its place: same loss, no gradient for that row."""
    u, p = unit(3, 4).requires_grad_(), unit(2, 3, 4, seed=1).requires_grad_()
    scale, valid = number(20.0), torch.tensor([True, False, True])
    losses = []
    for filler in (0.0, 1e3):
        n = unit(3, 4, seed=2)
        n[1] = filler
        n.requires_grad_()
        losses.append(s_neg(u, p, n, valid, scale))
        of_u, of_p, of_n = torch.autograd.grad(losses[-1], (u, p, n))
        assert of_u[1].eq(0).all()
        assert of_p[:, 1].eq(0).all()
        assert of_n[1].eq(0).all()
        assert of_n[0].ne(0).any()
        assert all(g.isfinite().all() for g in (of_u, of_p, of_n))
    assert losses[0].equal(losses[1])


def test_gradients_of_embeddings_and_scale() -> None:
    u, p, n = unit(3, 4), unit(2, 3, 4, seed=1), unit(3, 4, seed=2)
    scale = number(3.0)
    valid = torch.tensor([True, False, True])
    leaves = tuple(t.requires_grad_() for t in (u, p, n, scale))
    assert torch.autograd.gradcheck(lambda u, p, n, s: s_neg(u, p, n, valid, s), leaves)
    s_neg(u, p, n, valid, scale).backward()
    assert scale.grad is not None
    assert scale.grad.abs() > 1e-6
