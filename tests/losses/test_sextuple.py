"""Contrast of sextuples against a loop."""

import math
from collections.abc import Callable

import pytest
import torch
from tests.losses.draws import number, unit
from torch import Tensor

from compo_pipeline.losses.sextuple import (
    contrast,
    pair_ranking,
    similarities,
    softmax_contrast,
)

# Pairs of kinds that belong together, as the specification writes them.
TRUE = {
    ("real", "real"),
    ("real", "positive"),
    ("positive", "real"),
    ("positive", "positive"),
    ("negative", "negative"),
}
KINDS = ("real", "negative", "positive")
ALL = torch.ones(3, 4, dtype=torch.bool)
NO_IMAGES = torch.tensor([[True] * 4, [False] * 4, [False] * 4])
SOME = torch.tensor([[True] * 4, [True, False, True, True], [False, True, True, False]])


def slow(
    images: Tensor, texts: Tensor, scale: float, bias: float, there: tuple[Tensor, Tensor]
) -> Tensor:
    """Entry by entry of the (3n)^2."""
    losses = []
    n = images.shape[1]
    for a, image_kind in enumerate(KINDS):
        for i in range(n):
            for b, text_kind in enumerate(KINDS):
                for j in range(n):
                    if not (there[0][a, i] and there[1][b, j]):
                        continue
                    z = scale * images[a, i] @ texts[b, j] + bias
                    belong = i == j and (image_kind, text_kind) in TRUE
                    probability = torch.sigmoid(z)
                    losses.append(-torch.log(probability if belong else 1 - probability))
    return torch.stack(losses).mean()


@pytest.mark.parametrize("there", [(ALL, ALL), (NO_IMAGES, ALL), (SOME, SOME.roll(1, 1))])
def test_equals_the_loop_with_its_gradient(there: tuple[Tensor, Tensor]) -> None:
    v, t = unit(3, 4, 5).requires_grad_(), unit(3, 4, 5, seed=1).requires_grad_()
    expected = slow(v, t, 5.0, -1.5, there)
    got = contrast(similarities(v, t, number(5.0)), number(-1.5), *there)
    assert got.item() == pytest.approx(expected.item(), abs=1e-12)
    for mine, theirs in zip(
        torch.autograd.grad(got, (v, t)), torch.autograd.grad(expected, (v, t)), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


def test_absent_entries_take_no_part() -> None:
    """Whatever stands in their place: same loss, no gradient for them, none that is not finite."""
    losses = []
    for filler in (0.0, 1e3):
        v, t = unit(3, 4, 5), unit(3, 4, 5, seed=1)
        v[~SOME] = t[~SOME] = filler
        v.requires_grad_()
        t.requires_grad_()
        losses.append(contrast(similarities(v, t, number(100.0)), number(-30.0), SOME, SOME))
        for gradient in torch.autograd.grad(losses[-1], (v, t)):
            assert gradient.isfinite().all()
            assert gradient[~SOME].eq(0).all()
            assert gradient[SOME].ne(0).any()
    assert losses[0].equal(losses[1])


def slow_softmax(logits: Tensor, there: tuple[Tensor, Tensor]) -> Tensor:
    """Anchor by anchor: images among all texts, then texts among all images."""
    kinds, n = logits.shape[:2]
    entries = [(a, i) for a in range(kinds) for i in range(n)]
    directions = []
    for anchors, others, view in (
        (*there, lambda a, b: logits[(*a, *b)]),
        (*reversed(there), lambda a, b: logits[(*b, *a)]),
    ):
        losses = []
        for anchor in (one for one in entries if anchors[one]):
            shown = [one for one in entries if others[one]]
            own = [
                one
                for one in shown
                if one[1] == anchor[1] and (KINDS[anchor[0]], KINDS[one[0]]) in TRUE
            ]
            if own:
                total = torch.stack([view(anchor, one).exp() for one in shown]).sum().log()
                losses.append(torch.stack([total - view(anchor, one) for one in own]).mean())
        directions.append(torch.stack(losses).mean())
    return (directions[0] + directions[1]) / 2


@pytest.mark.parametrize("there", [(ALL, ALL), (NO_IMAGES, ALL), (SOME, SOME.roll(1, 1))])
def test_the_softmax_equals_the_loop_with_its_gradient(there: tuple[Tensor, Tensor]) -> None:
    v, t = unit(3, 4, 5).requires_grad_(), unit(3, 4, 5, seed=1).requires_grad_()
    logits = similarities(v, t, number(5.0))
    expected, got = slow_softmax(logits, there), softmax_contrast(logits, *there)
    assert got.item() == pytest.approx(expected.item(), abs=1e-12)
    for mine, theirs in zip(
        torch.autograd.grad(got, (v, t), retain_graph=True),
        torch.autograd.grad(expected, (v, t)),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("there", [(ALL, ALL), (SOME, SOME.roll(1, 1))])
def test_pairs_are_ranked_above_the_crossed_ones(there: tuple[Tensor, Tensor]) -> None:
    logits = similarities(unit(3, 4, 5), unit(3, 4, 5, seed=1), number(5.0))
    images, texts = there
    expected = 0.0
    for right, wrong in (((0, 0), (0, 1)), ((0, 0), (1, 0)), ((1, 1), (0, 1)), ((1, 1), (1, 0))):
        losses = [
            math.log1p(
                math.exp(logits[wrong[0], i, wrong[1], i] - logits[right[0], i, right[1], i])
            )
            for i in range(4)
            if all(images[a, i] and texts[b, i] for a, b in (right, wrong))
        ]
        expected += sum(losses) / len(losses) if losses else 0.0
    assert pair_ranking(logits, *there).item() == pytest.approx(expected)


@pytest.mark.parametrize("loss", [softmax_contrast, pair_ranking])
def test_what_is_absent_has_no_gradient(loss: Callable[..., Tensor]) -> None:
    v, t = unit(3, 4, 5), unit(3, 4, 5, seed=1)
    v[~SOME] = t[~SOME] = 1e3
    leaves = v.requires_grad_(), t.requires_grad_()
    value = loss(similarities(v, t, number(100.0)), SOME, SOME)
    for gradient in torch.autograd.grad(value, leaves):
        assert gradient.isfinite().all()
        assert gradient[~SOME].eq(0).all()
