"""Random tensors of the losses' tests, in double precision."""

import torch
import torch.nn.functional as F
from torch import Tensor


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def unit(*shape: int, seed: int = 0) -> Tensor:
    """Of length 1 along the last dimension."""
    return F.normalize(draw(*shape, seed=seed), dim=-1)


def number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)
