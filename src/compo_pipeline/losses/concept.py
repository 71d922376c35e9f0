"""Contrast of images with the concepts (noun phrases) of their captions.

Shapes: m images of a batch, K concepts of all its captions, P patches, D width of the joint space.
Ragged concepts are one flat tensor with an index of their owners.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from compo_pipeline.losses.contrastive import pairwise

_EPSILON = 1e-12


def match_mask(owners: Tensor, images: int) -> Tensor:
    """Boolean mask [m, K] of the concepts that are true of each image.

    Source: C2LIP paper, z' of Eq. 5 and 7.

    Args:
        owners: [K], row of the caption that contains each concept.
        images: number m of images.

    Returns:
        [m, K], bool.
    """
    rows = torch.arange(images, device=owners.device)
    return owners == rows[:, None]


def npc(images: Tensor, concepts: Tensor, matches: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """Noun-phrase contrastive loss: sigmoid loss over all pairs of an image and a phrase.

    Source: C2LIP paper, Eq. 5.

    Args:
        images: [m, D], normalised.
        concepts: [K, D], normalised.
        matches: [m, K], bool.
        scale: scalar, exp(logit_scale).
        bias: scalar, logit_bias.

    Returns:
        Scalar, the sum over all pairs divided by K.
    """
    return pairwise(scale * images @ concepts.T + bias, matches)


def xac(
    patches: Tensor,
    concepts: Tensor,
    matches: Tensor,
    scale: Tensor,
    bias: Tensor,
    chunk: int = 16,
) -> Tensor:
    """Cross-attended concept loss: sigmoid loss of concepts and their attention-pooled patches.

    Source: C2LIP paper, Eq. 6 and 7.

    Args:
        patches: [m, P, D], in the joint space, not normalised.
        concepts: [K, D], normalised.
        matches: [m, K], bool.
        scale: scalar, exp(logit_scale).
        bias: scalar, logit_bias.
        chunk: images attended to at a time. The loss is the same for any; beside the patches no
            more than a few [chunk, K, P] are held, in the backward pass too.

    Returns:
        Scalar, the sum over all pairs divided by K.
    """
    cosines = [
        checkpoint(
            _attended_cosines, block, concepts, use_reentrant=False, preserve_rng_state=False
        )
        for block in torch.split(patches, chunk)
    ]
    return pairwise(scale * torch.cat(cosines) + bias, matches)


def _attended_cosines(patches: Tensor, concepts: Tensor) -> Tensor:
    """Cosines [m, K] of concepts and their attention-pooled patches, v(c) = sum_p a_p v_p (Eq. 6).

    v(c), D wide for every pair, is never formed: c . v(c) = sum_p a_p (c . v_p), and
    |v(c)|^2 = a' G a with the patches' Gram matrix G.
    """
    seen = F.normalize(patches, dim=-1)
    similarity = concepts @ seen.mT
    weights = similarity.softmax(dim=-1)
    along = (weights * similarity).sum(dim=-1)
    square = (weights @ (seen @ seen.mT) * weights).sum(dim=-1)
    return along / square.clamp(min=_EPSILON).sqrt()
