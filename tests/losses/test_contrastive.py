"""CLIP's and SigLIP's losses, against loops."""

import math

import pytest
import torch
from tests.losses.draws import number, unit
from torch import Tensor

from compo_pipeline.losses.contrastive import (
    clip,
    multi_positive,
    pairwise,
    paraphrase_contrast,
    sigmoid,
)


def slow_clip(images: Tensor, texts: Tensor, scale: float) -> float:
    """Eq. 1, pair by pair."""
    m, total = len(images), 0.0
    logit = [[scale * float(images[i] @ texts[j]) for j in range(m)] for i in range(m)]
    for i in range(m):
        row = sum(math.exp(logit[i][j]) for j in range(m))
        column = sum(math.exp(logit[j][i]) for j in range(m))
        total -= math.log(math.exp(logit[i][i]) / row) + math.log(math.exp(logit[i][i]) / column)
    return total / (2 * m)


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("scale", [1.0, 14.3])
def test_clip_equals_the_loop(rows: int, scale: float) -> None:
    images, texts = unit(rows, 6), unit(rows, 6, seed=1)
    got = clip(images, texts, number(scale))
    assert got.item() == pytest.approx(slow_clip(images, texts, scale), abs=1e-12)


def test_multi_positive_equals_the_loop_with_its_eighth_of_m() -> None:
    """Eq. 4: both directions of every positive summed over rows, divided by 8m at four."""
    images, positives = unit(3, 5), unit(4, 3, 5, seed=1)
    total = sum(slow_clip(images, texts, 9.0) * 2 * 3 for texts in positives)
    got = multi_positive(images, positives, number(9.0))
    assert got.item() == pytest.approx(total / (8 * 3), abs=1e-12)


def test_gradients_of_embeddings_and_scale() -> None:
    images, positives = unit(3, 4).requires_grad_(), unit(2, 3, 4, seed=1).requires_grad_()
    scale = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(multi_positive, (images, positives, scale))
    multi_positive(images, positives, scale).backward()
    assert scale.grad is not None
    assert scale.grad.abs() > 1e-6


def slow_sigmoid(images: Tensor, texts: Tensor, scale: float, bias: float) -> float:
    """C2LIP paper, Eq. 4, pair by pair."""
    total = 0.0
    for i, image in enumerate(images):
        for j, text in enumerate(texts):
            z = 1 if i == j else -1
            total -= math.log(1 / (1 + math.exp(-z * (scale * float(image @ text) + bias))))
    return total / len(images)


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize(("scale", "bias"), [(1.0, 0.0), (14.3, -8.0)])
def test_sigmoid_equals_the_loop(rows: int, scale: float, bias: float) -> None:
    images, texts = unit(rows, 6), unit(rows, 6, seed=1)
    s, b = (number(value) for value in (scale, bias))
    got = sigmoid(images, texts, s, b).item()
    assert got == pytest.approx(slow_sigmoid(images, texts, scale, bias), abs=1e-12)


def test_a_text_of_several_images_and_an_image_of_several_texts() -> None:
    """The sum is divided by the texts, not by the images."""
    matches = torch.tensor([[True, True, False], [True, False, False]])
    got = pairwise(torch.zeros(2, 3), matches)
    assert got.item() == pytest.approx(6 * math.log(2) / 3)


def test_own_positives_equal_the_loop() -> None:
    images, texts, positives = unit(4, 5), unit(4, 5, seed=1), unit(4, 5, seed=2)
    total = 0.0
    for anchors in (images, texts):
        for i, anchor in enumerate(anchors):
            terms = [math.exp(7.0 * float(anchor @ positive)) for positive in positives]
            total -= math.log(terms[i] / sum(terms))
    got = paraphrase_contrast(images, texts, positives, number(7.0))
    assert got.item() == pytest.approx(total / 8, abs=1e-12)
