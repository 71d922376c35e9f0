"""Cost of a model: its parameters, and the operations of an image and of a text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode


@dataclass(frozen=True, slots=True)
class ModelCost:
    """Size of a model and operations of its towers.

    Attributes:
        parameters: parameters of the image tower and of the whole model, in millions.
        gflops: floating-point operations of one image and of one text, in billions. A
            multiplication and an addition count as two.

    0 stands for what is not counted.
    """

    parameters: tuple[float, float]
    gflops: tuple[float, float] = (0.0, 0.0)


def cost_of(module: Any, tokens: int) -> ModelCost:
    """Count parameters and operations of a module on the meta device.

    Args:
        module: a model's `skeleton`.
        tokens: ids of one text.
    """
    side = module.visual.image_size
    image = torch.zeros(1, 3, *(side if isinstance(side, tuple) else (side, side)), device="meta")
    text = torch.zeros(1, tokens, dtype=torch.long, device="meta")
    return ModelCost(
        parameters=(millions(module.visual), millions(module)),
        gflops=(_gflops(module.encode_image, image), _gflops(module.encode_text, text)),
    )


def millions(module: nn.Module) -> float:
    """Number of a module's parameters, in millions."""
    return sum(parameter.numel() for parameter in module.parameters()) / 1e6


def _gflops(encode: Callable[[Tensor], Tensor], inputs: Tensor) -> float:
    # Text towers of transformers ask for values of their masks, unless these are fake.
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake, FlopCounterMode(display=False) as counter:
        encode(fake.from_tensor(inputs))
    return float(counter.get_total_flops()) / 1e9
