"""Contrastive and ranking losses on real pairs and the synthetic pairs edited from them.

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


def similarities(images: Tensor, texts: Tensor, scale: Tensor | float) -> Tensor:
    """Logits [3, n, 3, n] of every image with every text: scale times cosine.

    Args:
        images: [3, n, D], normalised. Rows of absent ones hold any finite values.
        texts: embeddings of the texts [3, n, D].
        scale: scalar, exp(logit_scale) or another inverse temperature.

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
        images: [3, n], bool: the image exists; at least one sextuple has one.
        texts: [3, n], bool: the text exists; at least one sextuple has one.

    Returns:
        Scalar, binary cross entropy, mean over the pairs that exist.
    """
    there = images[:, :, None, None] & texts
    losses = F.binary_cross_entropy_with_logits(
        logits + bias, _matches(logits).to(logits.dtype), reduction="none"
    )
    return losses.masked_fill(~there, 0.0).sum() / there.sum()


def softmax_contrast(logits: Tensor, images: Tensor, texts: Tensor) -> Tensor:
    """InfoNCE over all image-text pairs of real and synthetic samples, in both directions.

    Pairs belong together as in `contrast`. An anchor with two of them (a real image has its caption
    and the rephrased one) takes the mean of their log-probabilities.

    Source: supervised contrastive learning (Khosla et al. 2020), Eq. 2, between images and texts.

    Args:
        logits: [3, n, 3, n], of `similarities`.
        images: [3, n], bool: the image exists.
        texts: [3, n], bool: the text exists.

    Returns:
        Scalar, the mean of both directions; each is a mean over the anchors that have a pair.
    """
    rows = logits.shape[0] * logits.shape[1]
    there = (images[:, :, None, None] & texts).view(rows, rows)
    matches = _matches(logits).reshape(rows, rows) & there
    flat = logits.reshape(rows, rows).masked_fill(~there, torch.finfo(logits.dtype).min)
    return (_anchored(flat, matches) + _anchored(flat.T, matches.T)) / 2


def pair_ranking(logits: Tensor, images: Tensor, texts: Tensor) -> Tensor:
    """Logistic ranking of a sample's true pairs above its crossed ones.

    The real and the negative pair are each ranked above the real image with the negative text, and
    above the negative image with the real text: four comparisons of one sample, whatever else the
    batch holds.

    Source: RankNet (Burges et al. 2005), Eq. 3, with the target 1.

    Args:
        logits: [3, n, 3, n], of `similarities`.
        images: [3, n], bool: the image exists.
        texts: [3, n], bool: the text exists.

    Returns:
        Scalar, the sum of four means over the samples that have both pairs; an empty mean is 0.
    """
    own = logits.diagonal(dim1=1, dim2=3)  # [3, 3, n]: image kind, text kind, sextuple
    there = images[:, None] & texts
    total = logits.new_zeros(())
    for kind in (REAL, NEGATIVE):
        for crossed in ((REAL, NEGATIVE), (NEGATIVE, REAL)):
            compared = there[kind, kind] & there[crossed]
            losses = F.softplus(own[crossed] - own[kind, kind]).masked_fill(~compared, 0.0)
            total = total + losses.sum() / compared.sum().clamp(min=1)
    return total


def _matches(logits: Tensor) -> Tensor:
    """Boolean mask [3, n, 3, n] of the images and texts that belong together."""
    own = torch.eye(logits.shape[1], dtype=torch.bool, device=logits.device)
    return torch.tensor(_TRUE, device=logits.device)[:, None, :, None] & own[:, None, :]


def _anchored(logits: Tensor, matches: Tensor) -> Tensor:
    """Mean of the anchors' (rows') cross entropies with their matches, of anchors that have one."""
    count = matches.sum(1)
    logp = logits.log_softmax(dim=1).masked_fill(~matches, 0.0)
    return (logp.sum(1) / count.clamp(min=1)).sum().neg() / count.count_nonzero()
