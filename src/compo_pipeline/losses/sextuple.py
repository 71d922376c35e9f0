"""Contrast of real pairs and the synthetic pairs that are made of them.

A sextuple is a real pair, a negative pair (its meaning changed) and a positive pair (its meaning
kept), each an image and a text. Either half of a synthetic pair may be absent.

Shapes: n sextuples of one device, 3 kinds in the order REAL, NEGATIVE, POSITIVE, D width of the
joint space. Logits [3, n, 3, n] are images (kind, sextuple) by texts (kind, sextuple).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

REAL, NEGATIVE, POSITIVE = range(3)

# Which kind of image is described by which kind of text, within one sextuple.
_TRUE = (
    (True, False, True),
    (False, True, False),
    (True, False, True),
)


def similarities(images: Tensor, texts: Tensor, scale: Tensor) -> Tensor:
    """Logits [3, n, 3, n] of every image with every text: scale times cosine.

    Args:
        images: [3, n, D], normalised; anything finite where there is none.
        texts: [3, n, D], likewise.
        scale: scalar, exp(logit_scale).

    Returns:
        [3, n, 3, n].
    """
    return scale * torch.einsum("aid,bjd->aibj", images, texts)


def contrast(logits: Tensor, bias: Tensor, images: Tensor, texts: Tensor) -> Tensor:
    """Mean binary cross entropy over all image-text pairs of real and synthetic samples.

    A sextuple's real and positive images belong to its real and positive texts, its negative
    image to its negative text, and nothing else to anything. Without synthetic images (a row
    of `images` all false) the real ones are left, against the three texts.

    Source: SPARCL, L_con; SigLIP (Zhai et al. 2023), Eq. 1, which divides by the texts alone.

    Args:
        logits: [3, n, 3, n], of `similarities`.
        bias: scalar, logit_bias.
        images: [3, n], bool: the image exists; that of one sextuple at least.
        texts: [3, n], bool: the text exists; that of one sextuple at least.

    Returns:
        Scalar, binary cross entropy, mean over the pairs that exist.
    """
    own = torch.eye(logits.shape[1], dtype=torch.bool, device=logits.device)
    matches = torch.tensor(_TRUE, device=logits.device)[:, None, :, None] & own[:, None, :]
    there = images[:, :, None, None] & texts
    losses = F.binary_cross_entropy_with_logits(
        logits + bias, matches.to(logits.dtype), reduction="none"
    )
    return losses.masked_fill(~there, 0.0).sum() / there.sum()
