"""Token-patch scores, against loops over tokens and patches."""

import math
from typing import get_args

import pytest
import torch
from tests.losses.draws import draw, number
from torch import Tensor

from compo_pipeline.losses.local_alignment import AttentionNorm, attention_weights, local_scores

NORMS = get_args(AttentionNorm)


def slow_weights(similarity: list[float], norm: str) -> list[float]:
    """Eq. 6 for one token."""
    if norm == "softmax":
        weights = [math.exp(a) for a in similarity]
        return [w / sum(weights) for w in weights]
    least, most = min(similarity), max(similarity)
    weights = [(a - least) / (most - least) for a in similarity]
    if norm == "minmax_sparse":
        weights = [w if w >= 1 / len(weights) else 0.0 for w in weights]
    return [w / sum(weights) for w in weights]


def slow(patches: Tensor, tokens: Tensor, mask: Tensor, scale: float, norm: str) -> Tensor:
    """Eq. 6-8, one token at a time."""
    rows, texts = mask.shape[:2]
    scores = torch.zeros(rows, texts, dtype=torch.float64)
    for i in range(rows):
        for k in range(texts):
            total = 0.0
            for t in range(mask.shape[2]):
                if mask[i, k, t]:
                    token = tokens[i, k, t]
                    weights = slow_weights([float(token @ v) for v in patches[i]], norm)
                    seen = sum(w * v for w, v in zip(weights, patches[i], strict=True))
                    cosine = float(seen @ token) / float(seen.norm() * token.norm())
                    total += math.exp(scale * cosine)
            scores[i, k] = math.log(total)
    return scores


@pytest.fixture
def drawn() -> tuple[Tensor, Tensor, Tensor]:
    """Two rows, three texts each of up to four tokens, five patches, width 6."""
    lengths = torch.tensor([[4, 2, 1], [3, 4, 4]])
    mask = torch.arange(5) < 1 + lengths[..., None]
    mask[..., 0] = False
    return draw(2, 5, 6), draw(2, 3, 5, 6, seed=1), mask


@pytest.mark.parametrize("norm", NORMS)
def test_equals_the_loop(drawn: tuple[Tensor, Tensor, Tensor], norm: AttentionNorm) -> None:
    scale = number(7.0)
    got = local_scores(*drawn, scale, norm)
    # The epsilon of both divisions is the only difference.
    torch.testing.assert_close(got, slow(*drawn, 7.0, norm), atol=1e-4, rtol=0)


def test_the_norms_of_attention_by_hand() -> None:
    similarity = torch.tensor([0.0, 1.0, 3.0, 8.0])
    expected = {
        "minmax": [0.0, 1 / 12, 3 / 12, 8 / 12],
        "minmax_sparse": [0.0, 0.0, 3 / 11, 8 / 11],  # 1/8 is below 1/4, 3/8 is not
        "softmax": [math.exp(a) / sum(math.exp(b) for b in (0, 1, 3, 8)) for a in (0, 1, 3, 8)],
    }
    for norm in NORMS:
        assert attention_weights(similarity, norm).tolist() == pytest.approx(
            expected[norm], abs=1e-5
        )


def test_masked_tokens_change_nothing_and_get_no_gradient(
    drawn: tuple[Tensor, Tensor, Tensor],
) -> None:
    patches, tokens, mask = drawn
    scale = number(50.0)
    other = tokens.masked_fill(~mask[..., None], 1e3).requires_grad_()
    got = local_scores(patches, other, mask, scale)
    assert got.equal(local_scores(patches, tokens, mask, scale))
    (gradient,) = torch.autograd.grad(got.sum(), other)
    assert gradient[~mask].eq(0).all()
    assert gradient[mask].ne(0).any(-1).all()


@pytest.mark.parametrize("norm", NORMS)
def test_gradients_with_the_attention_held(
    drawn: tuple[Tensor, Tensor, Tensor], norm: AttentionNorm
) -> None:
    """Numerical differences move the attention, the gradient must not: it is held here too."""
    patches, tokens, mask = drawn
    weights = attention_weights(torch.einsum("mntd,mpd->mntp", tokens, patches), norm)

    def held(patches: Tensor, tokens: Tensor, scale: Tensor) -> Tensor:
        seen = torch.einsum("mntp,mpd->mntd", weights, patches)
        logits = scale * torch.cosine_similarity(seen, tokens, dim=-1)
        return logits.masked_fill(~mask, -torch.inf).logsumexp(-1)

    leaves = [patches, tokens, number(3.0)]
    leaves = [leaf.requires_grad_() for leaf in leaves]
    assert torch.autograd.gradcheck(held, leaves)
    expected = torch.autograd.grad(held(*leaves).sum(), leaves)
    got = local_scores(leaves[0], leaves[1], mask, leaves[2], norm)
    for a, b in zip(torch.autograd.grad(got.sum(), leaves), expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-8, rtol=1e-6)
