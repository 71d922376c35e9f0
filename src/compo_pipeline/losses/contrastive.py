"""Contrast of matching pairs with all others of the batch.

Shapes: m rows of a batch, L positives a row, D width of the joint space.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def clip(images: Tensor, texts: Tensor, scale: Tensor) -> Tensor:
    """Symmetric InfoNCE: image i belongs to text i and to no other.

    Source: CLIP (Radford et al. 2021), Fig. 3; CLIC paper, Eq. 1.

    Args:
        images: [m, D], normalised.
        texts: [m, D], normalised.
        scale: scalar, exp(logit_scale).

    Returns:
        Scalar, the mean of both directions.
    """
    logits = scale * images @ texts.T
    target = torch.arange(len(logits), device=logits.device)
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2


def multi_positive(images: Tensor, positives: Tensor, scale: Tensor) -> Tensor:
    """CLIP loss against each of several positives, averaged.

    Source: CLIC paper, Eq. 4; its 1/(8m) is the mean over rows, both directions and four
    positives.

    Args:
        images: [m, D], normalised.
        positives: [L, m, D], normalised.
        scale: scalar, exp(logit_scale).

    Returns:
        Scalar.
    """
    return torch.stack([clip(images, texts, scale) for texts in positives]).mean()
