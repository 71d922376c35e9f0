"""The focal, smoothed choice, against a loop."""

import math

import pytest
import torch
from torch import Tensor

from compo_pipeline.losses.calibrated import calibrated_loss

VALID = torch.tensor(
    [[True, True, True], [True, False, True], [False, False, False], [False, True, False]]
)


def draw(*shape: int, seed: int = 0) -> Tensor:
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return 3 * made


def slow(logits: Tensor, valid: Tensor, gamma: float, beta: float) -> float:
    """Eq. 9 and 10, row by row over the texts that exist."""
    losses = []
    for row, there in zip(logits.tolist(), valid.tolist(), strict=True):
        kept = [row[0]] + [x for x, is_there in zip(row[1:], there, strict=True) if is_there]
        if len(kept) == 1:
            continue
        total = sum(math.exp(x) for x in kept)
        loss = 0.0
        for k, x in enumerate(kept):
            p = math.exp(x) / total
            y = (1 - beta if k == 0 else 0.0) + beta / len(kept)
            loss -= y * (1 - p) ** gamma * math.log(p)
        losses.append(loss)
    return sum(losses) / len(losses)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("beta", [0.0, 0.02, 0.1])
def test_equals_the_loop(gamma: float, beta: float) -> None:
    logits = draw(4, 4)
    got = calibrated_loss(logits, VALID, gamma, beta)
    assert got.item() == pytest.approx(slow(logits, VALID, gamma, beta), abs=1e-12)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_an_absent_negative_has_no_probability_and_no_gradient(gamma: float) -> None:
    losses = []
    for filler in (0.0, 1e4):
        logits = draw(4, 4)
        logits[:, 1:][~VALID] = filler
        logits.requires_grad_()
        losses.append(calibrated_loss(logits, VALID, gamma, 0.1))
        (gradient,) = torch.autograd.grad(losses[-1], logits)
        assert gradient.isfinite().all()
        assert gradient[:, 1:][~VALID].eq(0).all()
        assert gradient[2].eq(0).all()  # the row without any
        assert gradient[0].ne(0).all()
    assert losses[0].equal(losses[1])
