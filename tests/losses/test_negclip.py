"""NegCLIP's contrast, against a loop."""

import math

import pytest
import torch
from tests.losses.draws import number, unit
from torch import Tensor

from compo_pipeline.losses.negclip import negclip, own_negative


def slow(
    images: Tensor, texts: Tensor, negatives: Tensor, valid: list[bool], scale: float
) -> float:
    """Eq. 2, row by row: 2m texts for an image, m images for a caption."""
    candidates = [*texts, *(n for n, there in zip(negatives, valid, strict=True) if there)]
    total = 0.0
    for i, (image, text) in enumerate(zip(images, texts, strict=True)):
        own = math.exp(scale * float(image @ text))
        total -= math.log(own / sum(math.exp(scale * float(image @ t)) for t in candidates))
        total -= math.log(own / sum(math.exp(scale * float(u @ texts[i])) for u in images))
    return total / (2 * len(images))


@pytest.mark.parametrize(
    "valid", [[True] * 4, [True, False, True, False], [False] * 4, [True] * 12]
)
def test_equals_the_loop(valid: list[bool]) -> None:
    u, t, n = unit(4, 5), unit(4, 5, seed=1), unit(len(valid), 5, seed=2)
    got = negclip(u, t, n, torch.tensor(valid), number(9.0))
    assert got.item() == pytest.approx(slow(u, t, n, valid, 9.0), abs=1e-12)


def test_gradients() -> None:
    u, t, n = unit(3, 4), unit(3, 4, seed=1), unit(3, 4, seed=2)
    scale, valid = number(3.0), torch.tensor([True, False, True])
    leaves = tuple(x.requires_grad_() for x in (u, t, n, scale))
    assert torch.autograd.gradcheck(lambda u, t, n, s: negclip(u, t, n, valid, s), leaves)
    of_n = torch.autograd.grad(negclip(u, t, n, valid, scale), n)[0]
    assert of_n[1].eq(0).all()
    assert of_n[0].ne(0).any()


def slow_own(u: Tensor, t: Tensor, n: Tensor, valid: list[bool], foiled: list[bool]) -> float:
    """Row by row, over the rows that have a text; s is 9."""
    rows = [i for i, there in enumerate(valid) if there]
    total = 0.0
    for i in rows:
        own = math.exp(9 * float(u[i] @ t[i]))
        foil = math.exp(9 * float(u[i] @ n[i])) if foiled[i] else 0.0
        total -= math.log(own / (foil + sum(math.exp(9 * float(u[i] @ t[j])) for j in rows)))
        total -= math.log(own / sum(math.exp(9 * float(u[j] @ t[i])) for j in rows))
    return total / (2 * len(rows))


@pytest.mark.parametrize("valid", [[True] * 4, [True, False, True, False], [False, True] * 2])
@pytest.mark.parametrize("foiled", [[True] * 4, [False, True, True, False]])
def test_each_with_its_own_negative_equals_the_loop(valid: list[bool], foiled: list[bool]) -> None:
    u, t, n = (unit(4, 5, seed=seed) for seed in range(3))
    expected, scale = slow_own(u, t, n, valid, foiled), number(9.0)
    for leaf in (u, t, n):
        leaf.requires_grad_()
    got = own_negative(u, t, n, torch.tensor(valid), torch.tensor(foiled), scale)
    assert got.item() == pytest.approx(expected, abs=1e-12)
    got.backward()
    for leaf, there in (
        (u, valid),
        (t, valid),
        (n, (torch.tensor(valid) & torch.tensor(foiled)).tolist()),
    ):
        assert leaf.grad is not None
        assert [bool(row.any()) for row in leaf.grad] == there


def test_without_any_text_of_its_own_the_loss_is_zero() -> None:
    u, none = unit(3, 4).requires_grad_(), torch.zeros(3, dtype=torch.bool)
    loss = own_negative(u, u, u, none, none, number(100.0))
    loss.backward()
    assert loss.item() == 0 and u.grad is not None and not u.grad.any()
