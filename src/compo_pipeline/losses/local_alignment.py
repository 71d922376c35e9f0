"""Similarity of an image and a text through the patches that each token attends to.

Shapes: m rows of a batch, N texts a row, P patches, T tokens, D width of the joint space.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

AttentionNorm = Literal["minmax", "minmax_sparse", "softmax"]

_EPSILON = 1e-6


def attention_weights(similarity: Tensor, norm: AttentionNorm = "minmax") -> Tensor:
    """Attention weights over the patches for a token, from its similarities to them.

    Source: FSC-CLIP paper, Eq. 6; App. B.1 for the other norms (`minmax_sparse` as SPARC, Bica et
    al. 2024: weights below 1/P are dropped). The softmax has no temperature.

    Args:
        similarity: [..., P], tokens times patches.
        norm: over the patches.

    Returns:
        [..., P], not negative, with sum 1; all zero where all patches are equally similar.
    """
    if norm == "softmax":
        return similarity.softmax(dim=-1)
    least, most = similarity.aminmax(dim=-1, keepdim=True)
    weights = (similarity - least) / (most - least + _EPSILON)
    if norm == "minmax_sparse":
        weights = weights.masked_fill(weights < 1 / similarity.shape[-1], 0.0)
    return weights / (weights.sum(dim=-1, keepdim=True) + _EPSILON)


def local_scores(
    patches: Tensor,
    tokens: Tensor,
    mask: Tensor,
    scale: Tensor,
    norm: AttentionNorm = "minmax",
) -> Tensor:
    """Scores [m, N] of each row's image with its texts, from token-to-patch attention.

    Each token's patches are averaged by attention, then compared with the token; the scores of a
    text's tokens are aggregated by logsumexp. Attention takes no gradient.

    Source: FSC-CLIP paper, Eq. 6-8; the temperature, and patches that are normalised only after
    the average, follow the authors' code.

    Args:
        patches: [m, P, D], projected, not normalised.
        tokens: [m, N, T, D], projected, not normalised.
        mask: [m, N, T], bool: the token counts; each text has at least one that does.
        scale: scalar, exp(logit_scale).
        norm: normalisation of the attention over patches.

    Returns:
        [m, N], logits.
    """
    similarity = torch.einsum("mntd,mpd->mntp", tokens.detach(), patches.detach())
    weights = attention_weights(similarity, norm)
    seen = F.normalize(torch.einsum("mntp,mpd->mntd", weights, patches), dim=-1)  # Eq. 7
    logits = scale * (seen * F.normalize(tokens, dim=-1)).sum(-1)
    return logits.masked_fill(~mask, -torch.inf).logsumexp(dim=-1)  # Eq. 8
