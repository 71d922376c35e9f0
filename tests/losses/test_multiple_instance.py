"""DAC's multiple-instance losses, against loops."""

import math

import pytest
import torch
from tests.losses.draws import number, unit
from torch import Tensor

from compo_pipeline.losses.multiple_instance import multiple_instance, multiple_negatives

SCALE = number(6.0)


def weight(image: Tensor, text: Tensor) -> float:
    return math.exp(6.0 * float(image @ text))


def test_the_batch_equals_the_loop() -> None:
    images, texts = unit(3, 5), unit(3, 4, 5, seed=1)
    total = 0.0
    for i, image in enumerate(images):
        own = sum(weight(image, text) for text in texts[i])
        row = sum(weight(image, text) for others in texts for text in others)
        column = sum(weight(other, text) for other in images for text in texts[i])
        total -= math.log(own / (row + column))
    assert multiple_instance(images, texts, SCALE).item() == pytest.approx(total / 3, abs=1e-12)


def test_own_negatives_equal_the_loop() -> None:
    images, texts, negatives = unit(3, 5), unit(3, 2, 5, seed=1), unit(3, 2, 5, seed=2)
    valid = [[True, True], [False, True], [False, False]]
    total = 0.0
    for i, image in enumerate(images):
        own = sum(weight(image, text) for text in texts[i])
        wrong = [weight(image, n) for n, there in zip(negatives[i], valid[i], strict=True) if there]
        total -= math.log(own / (own + sum(wrong)))
    got = multiple_negatives(images, texts, negatives, torch.tensor(valid), SCALE)
    assert got.item() == pytest.approx(total / 3, abs=1e-12)


def test_gradients_and_missing_negatives() -> None:
    images, texts, negatives = unit(2, 4), unit(2, 3, 4, seed=1), unit(2, 3, 4, seed=2)
    valid = torch.tensor([[True, False, True], [False, False, False]])
    leaves = tuple(t.requires_grad_() for t in (images, texts, negatives, SCALE.clone()))
    assert torch.autograd.gradcheck(
        lambda u, t, n, s: multiple_instance(u, t, s) + multiple_negatives(u, t, n, valid, s),
        leaves,
    )
    multiple_negatives(images, texts, negatives, valid, SCALE).backward()
    assert negatives.grad is not None
    assert [[bool(n.any()) for n in row] for row in negatives.grad] == valid.tolist()
