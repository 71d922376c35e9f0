"""How much of a phrase's attention lies on each patch of an image."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def attention(patches: Tensor, phrases: Tensor) -> Tensor:
    """Softmax over the patches of phrase times patch, as C2LIP pools by it in training.

    Source: C2LIP paper, Eq. 6; it has no temperature. Phrases times a scale give one with it.

    Args:
        patches: [m, P, D], in the joint space, not normalised.
        phrases: [K, D], normalised.

    Returns:
        [m, K, P], positive, with sum 1 over the patches.
    """
    return (phrases @ F.normalize(patches, dim=-1).mT).softmax(dim=-1)
