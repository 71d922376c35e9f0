"""Plain SigLIP, the control of methods with a bias."""

import math

import pytest
import torch
from torch import Tensor

from compo_pipeline.methods.clip import PairBatch, Siglip, SiglipObjective
from compo_pipeline.methods.contract import NoViewSettings


class Encoder:
    """Hands back what it gets."""

    scale = torch.tensor(3.0)
    bias = torch.tensor(-1.0)

    def images(self, images: Tensor) -> Tensor:
        return images

    def texts(self, tokens: Tensor) -> Tensor:
        return tokens


def test_the_loss_by_hand() -> None:
    """Four pairs, of which two match; the sum is divided by the two texts."""
    u = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    t = torch.tensor([[0.8, 0.6], [0.0, 1.0]])
    terms = Siglip(NoViewSettings(), SiglipObjective()).loss(Encoder(), PairBatch(u, t))  # type: ignore[arg-type]
    total = 0.0
    for i in range(2):
        for j in range(2):
            z = 1 if i == j else -1
            total += math.log1p(math.exp(-z * (3 * float(u[i] @ t[j]) - 1)))
    assert list(terms) == ["contrastive"]
    assert terms["contrastive"].weight == 1.0
    assert terms["contrastive"].value.item() == pytest.approx(total / 2)


def test_a_base_without_a_bias_starts_where_it_is_told() -> None:
    assert Siglip(NoViewSettings(), SiglipObjective()).bias == -30.0
    assert Siglip(NoViewSettings(), SiglipObjective(bias=-12.0)).bias == -12.0
