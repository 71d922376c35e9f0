"""Contrast of matching pairs with all others of the batch.

Shapes: m rows of a batch, K texts of the batch, L positives a row, D width of the joint space.
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
    """Mean of the CLIP losses of the images with each of their positive texts.

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


def paraphrase_contrast(images: Tensor, texts: Tensor, positives: Tensor, scale: Tensor) -> Tensor:
    """InfoNCE of the images, and of their captions, against the batch's paraphrases (SVLC).

    Source: SVLC (Doveh et al. 2023), the authors' code; one direction alone: no positive looks for
    its image or text.

    Args:
        images: [m, D], normalised.
        texts: [m, D], normalised.
        positives: [m, D], normalised; of each text another one that says the same.
        scale: scalar, exp(logit_scale).

    Returns:
        Scalar, the mean over images and texts.
    """
    target = torch.arange(len(positives), device=positives.device)
    from_images = F.cross_entropy(scale * images @ positives.T, target)
    return (from_images + F.cross_entropy(scale * texts @ positives.T, target)) / 2


def pairwise(logits: Tensor, matches: Tensor) -> Tensor:
    """Binary cross entropy (SigLIP) over all image-text pairs, divided by the number of texts.

    Source: SigLIP (Zhai et al. 2023), Eq. 1; C2LIP paper, Eq. 4, 5 and 7, which differ in what is
    compared.

    Args:
        logits: [m, K], scale and bias included.
        matches: [m, K], bool: the text belongs to the image.

    Returns:
        Scalar, the sum over all pairs divided by the number of texts.
    """
    return F.softplus(torch.where(matches, -logits, logits)).sum() / max(1, logits.shape[1])


def sigmoid(images: Tensor, texts: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """SigLIP's loss: image i belongs to text i and to no other.

    Source: SigLIP (Zhai et al. 2023), Eq. 1; C2LIP paper, Eq. 4.

    Args:
        images: [m, D], normalised.
        texts: [m, D], normalised.
        scale: scalar, exp(logit_scale).
        bias: scalar, logit_bias.

    Returns:
        Scalar.
    """
    logits = scale * images @ texts.T + bias
    return pairwise(logits, torch.eye(len(logits), dtype=torch.bool, device=logits.device))
