"""Contrastive loss between each row's positives and its own hard negative.

Shapes: m rows of a batch, L positives a row, D width of the joint space.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def s_neg(
    images: Tensor, positives: Tensor, negatives: Tensor, valid: Tensor, scale: Tensor
) -> Tensor:
    """Cross entropy over [positive, negative] with the positive as target, for each positive.

    Of two logits that is softplus(scale * (u.n - u.p)). Rows without a negative leave the mean;
    where none has one the loss is zero, with zero gradient.

    Source: CLIC paper, Eq. 5.

    Args:
        images: [m, D], normalised.
        positives: [L, m, D], normalised.
        negatives: [m, D], normalised. Rows of absent ones hold any finite values.
        valid: [m], bool: the row has a negative.
        scale: scalar, exp(logit_scale).

    Returns:
        Scalar, mean over positives and valid rows.
    """
    right = (positives * images).sum(-1)
    wrong = (negatives * images).sum(-1)
    losses = F.softplus(scale * (wrong - right))
    rows = valid.sum().clamp(min=1)
    return losses.masked_fill(~valid, 0.0).sum() / (rows * len(positives))
