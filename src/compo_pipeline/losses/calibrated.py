"""Selective calibrated regularisation: focal, smoothed cross entropy of a text and its negatives.

Shapes: m rows of a batch, K hard negatives a row.
"""

from __future__ import annotations

import torch
from torch import Tensor


def calibrated_loss(logits: Tensor, valid: Tensor, gamma: float = 0.0, beta: float = 0.0) -> Tensor:
    """Focal cross entropy, with label smoothing, of a row's text against its hard negatives.

    Of K_i valid negatives, the text's label is 1 - beta + beta / (K_i + 1) and each negative's
    beta / (K_i + 1); every term is weighted by (1 - p)^gamma, so that confident rows count less.
    With gamma and beta 0 that is cross entropy (Eq. 4).

    Source: FSC-CLIP paper, Eq. 3-4 (choice), 9 (focal), 10 (smoothing). An absent negative has
    probability 0 here; the authors' code leaves it in with a logit of 0.

    Args:
        logits: [m, K + 1], the text first; anything finite where a negative is absent.
        valid: [m, K], bool: the negative exists.
        gamma: exponent of the focal weight. 0 weights all equally.
        beta: label that is shared out among all valid texts; 0 leaves it with the first.

    Returns:
        Scalar, mean over the rows that have a negative; 0, with zero gradient, where none has.
    """
    there = torch.cat([torch.ones_like(valid[:, :1]), valid], dim=1)
    logp = logits.masked_fill(~there, -torch.inf).log_softmax(dim=1)
    # Zero times infinity is not zero, in the gradient either: absent columns get log 1.
    logp = logp.masked_fill(~there, 0.0)
    labels = beta * there.to(logp.dtype) / there.sum(1, keepdim=True)  # Eq. 10
    labels[:, 0] += 1 - beta
    # 1 - p without cancellation; the floor keeps powers below 1 differentiable at p = 1.
    doubt = (-torch.expm1(logp)).clamp(min=torch.finfo(logp.dtype).tiny)
    losses = -(labels * doubt**gamma * logp).sum(1)  # Eq. 9
    some = valid.any(1)
    return losses.masked_fill(~some, 0.0).sum() / some.sum().clamp(min=1)
