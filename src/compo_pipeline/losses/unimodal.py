"""CLIC's uni-modal loss: distance between the embeddings of reordered captions.

Shapes: m rows of a batch, D width of the joint space.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor


def unimodal(
    first: Tensor, second: Tensor, norm: Literal["squared", "plain"] = "squared"
) -> Tensor:
    """Mean distance between the text embeddings of each row's first two positives (CLIC, Eq. 6).

    Source: CLIC paper, Eq. 6, writes the norm; the authors' code uses the squared norm, which
    gave the published numbers and is the default here. The plain norm has gradient zero where
    both are equal.

    Args:
        first: [m, D], normalised.
        second: [m, D], normalised.
        norm: squared distance, or the distance itself.

    Returns:
        Scalar.
    """
    difference = first - second
    if norm == "squared":
        return difference.square().sum(-1).mean()
    distances: Tensor = difference.norm(dim=-1)
    return distances.mean()
