"""NegCLIP's contrastive loss, in which hard negatives are further texts of the batch.

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
        negatives: [N, D], normalised. Rows of absent ones hold any finite values.
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


def own_negative(
    images: Tensor, texts: Tensor, negatives: Tensor, valid: Tensor, foiled: Tensor, scale: Tensor
) -> Tensor:
    """InfoNCE of each image against the batch's texts and the negative of its own text.

    Image to text runs over the texts that exist and one negative, text to image over the images of
    these texts.

    Source: CS-CLIP (arXiv 2602.23906), the loss of units and their foils.

    Args:
        images: [m, D], normalised.
        texts: [m, D], normalised. Rows of absent ones hold any finite values.
        negatives: embeddings of the negatives [m, D].
        valid: [m], bool: the text exists.
        foiled: [m], bool: its negative exists.
        scale: scalar, exp(logit_scale).

    Returns:
        Scalar, the mean of both directions and of the rows with a text; 0, with zero gradient,
        where none has.
    """
    logits = scale * images @ texts.T
    target = torch.arange(len(logits), device=logits.device)
    # A row without a text keeps its own column, so that it stays finite; it leaves the mean.
    there = valid | torch.eye(len(logits), dtype=torch.bool, device=logits.device)
    wrong = scale * (images * negatives).sum(-1, keepdim=True)
    wrong = wrong.masked_fill(~foiled[:, None], -torch.inf)
    columns = torch.cat([logits.masked_fill(~there, -torch.inf), wrong], dim=1)
    to_text = F.cross_entropy(columns, target, reduction="none")
    to_image = F.cross_entropy(logits.T.masked_fill(~there, -torch.inf), target, reduction="none")
    losses = (to_text + to_image).masked_fill(~valid, 0.0) / 2
    return losses.sum() / valid.sum().clamp(min=1)
