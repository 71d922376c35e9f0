"""CE-CLIP's ranking, its thresholds and its intra-modal contrast, against loops."""

import math

import pytest
import torch
from torch import Tensor

from compo_pipeline.losses.adaptive_ranking import (
    adapted_thresholds,
    cross_modal_ranking,
    intra_modal,
    towards_first_negative,
)

RIGHT = torch.tensor([3.0, 1.0, 2.0])
WRONG = torch.tensor([[2.0, 4.0], [0.5, -9.0], [1.0, 1.5]])
VALID = torch.tensor([[True, True], [True, False], [False, True]])
THRESHOLDS = torch.tensor([0.5, 2.0])


def pairs() -> list[tuple[int, int]]:
    return [(i, k) for i in range(3) for k in range(2) if VALID[i, k]]


def test_the_ranking_equals_the_loop() -> None:
    hinges = [max(0.0, float(THRESHOLDS[k] + WRONG[i, k] - RIGHT[i])) for i, k in pairs()]
    got = cross_modal_ranking(RIGHT, WRONG, VALID, THRESHOLDS)
    assert got.item() == pytest.approx(sum(hinges) / 4) and sum(hinges) > 0


def test_thresholds_are_the_mean_gaps_within_bounds() -> None:
    """Kind 0: (1 + 0.5) / 2; kind 1: (-1 + 0.5) / 2, below 0."""
    assert adapted_thresholds(RIGHT, WRONG, VALID, THRESHOLDS, 10.0).tolist() == [0.75, 0.0]
    assert adapted_thresholds(RIGHT, WRONG, VALID, THRESHOLDS, 0.5).tolist() == [0.5, 0.0]
    none = torch.zeros_like(VALID)
    assert adapted_thresholds(RIGHT, WRONG, none, THRESHOLDS, 10.0).tolist() == THRESHOLDS.tolist()
    assert not adapted_thresholds(
        RIGHT.requires_grad_(), WRONG, VALID, THRESHOLDS, 10.0
    ).requires_grad
    RIGHT.requires_grad_(False)


@pytest.mark.parametrize("valid", [VALID, VALID[0], VALID[1]])
def test_the_intra_modal_contrast_equals_the_loop(valid: Tensor) -> None:
    total = 0.0
    for i in range(3):
        there = valid.expand_as(WRONG)[i]
        wrong = [math.exp(float(WRONG[i, k])) for k in range(2) if there[k]]
        own = math.exp(float(RIGHT[i]))
        total -= math.log(own / (own + sum(wrong)))
    assert intra_modal(RIGHT, WRONG, valid).item() == pytest.approx(total / 3, abs=1e-6)


def test_the_published_intra_modal_loss_is_a_cross_entropy_with_label_1() -> None:
    """As `get_tec_loss` of the authors' code: the caption's own logit is column 0 there."""
    generator = torch.Generator().manual_seed(0)
    right, wrong = torch.randn(5, generator=generator), torch.randn(5, 12, generator=generator)
    joined = torch.cat([right[:, None], wrong], dim=1)
    expected = torch.nn.functional.cross_entropy(joined, torch.ones(5, dtype=torch.long))
    everything = torch.ones(12, dtype=torch.bool)
    assert torch.allclose(towards_first_negative(right, wrong, everything), expected)
    valid = torch.arange(12) >= 2
    expected = torch.nn.functional.cross_entropy(
        joined[:, [0, *range(3, 13)]], torch.ones(5, dtype=torch.long)
    )
    assert torch.allclose(towards_first_negative(right, wrong, valid), expected)
    assert towards_first_negative(right, wrong, ~everything).item() == 0.0
