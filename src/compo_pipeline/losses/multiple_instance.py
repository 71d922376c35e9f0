"""Losses for several texts of an image, any of which may be true of it.

Shapes: m images of a batch, B texts of each, D width of the joint space.
"""

from __future__ import annotations

import torch
from torch import Tensor


def multiple_instance(images: Tensor, texts: Tensor, scale: Tensor) -> Tensor:
    """MIL-NCE loss of an image's several texts against all texts and images of the batch.

    Source: DAC (Doveh et al. 2023), the MIL-NCE loss of Miech et al. 2020, as the authors' code has
    it: the sum over the batch counts an image's own texts twice, in its row and in its column.

    Args:
        images: [m, D], normalised.
        texts: [m, B, D], normalised.
        scale: scalar, exp(logit_scale).

    Returns:
        Scalar, mean over images.
    """
    logits = scale * torch.einsum("md,nbd->mnb", images, texts)
    own = logits.diagonal(dim1=0, dim2=1).T.logsumexp(dim=1)
    batch = torch.cat([logits, logits.transpose(0, 1)], dim=1)
    return (batch.flatten(1).logsumexp(dim=1) - own).mean()


def multiple_negatives(
    images: Tensor, texts: Tensor, negatives: Tensor, valid: Tensor, scale: Tensor
) -> Tensor:
    """Negative log probability of an image's texts against the hard negatives of these texts.

    Source: DAC, the authors' code, where a missing negative stays in with a logit of its own; here
    it takes no part.

    Args:
        images: [m, D], normalised.
        texts: [m, B, D], normalised.
        negatives: [m, B, D], normalised. Rows of absent ones hold any finite values.
        valid: [m, B], bool: the negative exists.
        scale: scalar, exp(logit_scale).

    Returns:
        Scalar, mean over images; an image without any negative has 0.
    """
    right = scale * torch.einsum("md,mbd->mb", images, texts)
    wrong = scale * torch.einsum("md,mbd->mb", images, negatives)
    both = torch.cat([right, wrong.masked_fill(~valid, -torch.inf)], dim=1)
    return (both.logsumexp(dim=1) - right.logsumexp(dim=1)).mean()
