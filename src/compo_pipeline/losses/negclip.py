"""Hard negatives as further texts of the batch's contrast.

Shapes: m rows of a batch, N hard negatives of the whole batch, D width of the joint space.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def negclip(
    images: Tensor, texts: Tensor, negatives: Tensor, valid: Tensor, scale: Tensor
) -> Tensor:
    """InfoNCE of images against all captions and all hard negatives of the batch.

    Image to text runs over the m captions and the N negatives, text to image over the m captions
    alone: a negative belongs to no image.

    Source: NegCLIP (Yuksekgonul et al. 2023), without its batch of similar images; CLIC paper,
    Eq. 2, where N = m.

    Args:
        images: [m, D], normalised.
        texts: [m, D], normalised.
        negatives: [N, D], normalised; anything finite where there is none.
        valid: [N], bool: the negative exists.
        scale: scalar, exp(logit_scale).

    Returns:
        Scalar, the mean of both directions.
    """
    logits = scale * images @ texts.T
    wrong = (scale * images @ negatives.T).masked_fill(~valid, -torch.inf)
    target = torch.arange(len(logits), device=logits.device)
    image_to_text = F.cross_entropy(torch.cat([logits, wrong], dim=1), target)
    return (image_to_text + F.cross_entropy(logits.T, target)) / 2
