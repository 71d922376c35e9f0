"""Concept losses against the loops that the paper's equations read as, gradients included."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tests.losses.draws import draw, number
from torch import Tensor

from compo_pipeline.losses.concept import match_mask, npc, xac

OWNERS = torch.tensor([0, 0, 1, 2, 2, 2, 3])
SCALE, BIAS = 12.0, -4.0


def scalars() -> tuple[Tensor, Tensor]:
    made = (number(value) for value in (SCALE, BIAS))
    scale, bias = (value.requires_grad_() for value in made)
    return scale, bias


def true_of(image: int, concept: int) -> bool:
    return bool(OWNERS[concept] == image)


def pairs(cosine: Callable[[int, int], Tensor], s: Tensor, b: Tensor) -> Tensor:
    """Eq. 5 and 7 as they stand: -1/K sum_i sum_j log sigmoid(z'_ij (tau cos + b))."""
    total = torch.zeros((), dtype=torch.float64)
    for i in range(4):
        for j in range(len(OWNERS)):
            z = 1 if true_of(i, j) else -1
            total = total - torch.log(torch.sigmoid(z * (s * cosine(i, j) + b)))
    return total / len(OWNERS)


def matches() -> Tensor:
    return match_mask(OWNERS, 4)


def loop_attended(patches: Tensor, concept: Tensor) -> Tensor:
    """v(c) of Eq. 6 for one image and one concept, patch by patch."""
    seen = [patch / patch.norm() for patch in patches]
    powers = [torch.exp(concept @ patch) for patch in seen]
    total = torch.stack(powers).sum()
    pooled = torch.stack([w / total * v for w, v in zip(powers, seen, strict=True)]).sum(0)
    return pooled / pooled.norm()


def test_belonging() -> None:
    found = matches()
    assert found.dtype == torch.bool
    expected = [[true_of(i, j) for j in range(len(OWNERS))] for i in range(4)]
    assert found.tolist() == expected
    assert found.sum() == 7


def test_npc_is_the_loop() -> None:
    images = F.normalize(draw(4, 5), dim=-1).requires_grad_()
    concepts = F.normalize(draw(7, 5, seed=1), dim=-1).requires_grad_()
    scale, bias = scalars()
    leaves = (images, concepts, scale, bias)
    fast = npc(images, concepts, matches(), scale, bias)
    slow = pairs(lambda i, j: images[i] @ concepts[j], scale, bias)
    assert fast.item() == pytest.approx(slow.item(), abs=1e-12)
    ours, theirs = torch.autograd.grad(fast, leaves), torch.autograd.grad(slow, leaves)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=0)
        assert one.ne(0).any()


@pytest.mark.parametrize("chunk", [1, 3, 4, 100])
def test_xac_is_the_loop_whatever_the_chunk(chunk: int) -> None:
    patches = draw(4, 6, 5, seed=2).requires_grad_()
    concepts = F.normalize(draw(7, 5, seed=1), dim=-1).requires_grad_()
    scale, bias = scalars()
    leaves = (patches, concepts, scale, bias)
    fast = xac(patches, concepts, matches(), scale, bias, chunk)
    slow = pairs(lambda i, j: loop_attended(patches[i], concepts[j]) @ concepts[j], scale, bias)
    assert fast.item() == pytest.approx(slow.item(), abs=1e-11)
    ours, theirs = torch.autograd.grad(fast, leaves), torch.autograd.grad(slow, leaves)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=0)
        assert one.ne(0).any()


def test_xac_in_single_precision_is_the_loop_to_1e_5() -> None:
    """At the width of a real model, where |v(c)|^2 = a'Ga sums ten thousand products."""
    patches, concepts = draw(4, 100, 256, seed=2), F.normalize(draw(7, 256, seed=1), dim=-1)
    scale, bias = scalars()
    slow = pairs(lambda i, j: loop_attended(patches[i], concepts[j]) @ concepts[j], scale, bias)
    fast = xac(patches.float(), concepts.float(), matches(), scale.float(), bias.float())
    assert fast.dtype == torch.float32
    assert fast.item() == pytest.approx(slow.item(), rel=1e-5)


def test_xac_where_patches_cancel_out_stays_finite() -> None:
    """Opposite patches at equal attention leave nothing to compare with."""
    patches = torch.tensor([[[0.0, 1.0], [0.0, -1.0]]], requires_grad=True)
    concepts = torch.tensor([[1.0, 0.0]], requires_grad=True)
    loss = xac(patches, concepts, torch.tensor([[True]]), torch.tensor(9.0), torch.tensor(0.0))
    assert loss.item() == pytest.approx(math.log(2))
    assert all(g.isfinite().all() for g in torch.autograd.grad(loss, (patches, concepts)))


def test_no_concept_at_all_is_zero() -> None:
    none = torch.zeros(0, 5)
    owners = match_mask(torch.zeros(0, dtype=torch.long), 4)
    scale, bias = torch.tensor(9.0), torch.tensor(-3.0)
    assert npc(torch.ones(4, 5), none, owners, scale, bias).item() == 0
    assert xac(torch.ones(4, 6, 5), none, owners, scale, bias).item() == 0


def test_what_is_kept_for_the_backward_pass_does_not_grow_with_pairs() -> None:
    """Beside its inputs, xac keeps cosines [m, K], not attention [m, K, P]."""
    kept: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    patches = draw(8, 50, 5).requires_grad_()
    concepts = F.normalize(draw(40, 5, seed=1), dim=-1).requires_grad_()
    owners = torch.arange(40) % 8
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        xac(patches, concepts, match_mask(owners, 8), *scalars(), chunk=2)
    assert max(kept) < 8 * 40 * 50 / 4
