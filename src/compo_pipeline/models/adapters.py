"""The one kind of adapted layer that peft has not as it is wanted here.

Shapes: K sequences, T tokens, W width.
"""

from __future__ import annotations

from typing import Any

import torch
from peft.tuners.lora.layer import MultiheadAttention
from torch import Tensor, nn
from torch.func import functional_call

# peft allows several adapters on one layer, by name; there is ever one here.
ADAPTER = "default"


class FusedAttention(MultiheadAttention):
    """LoRA on the fused in-projection and the out-projection of `nn.MultiheadAttention`.

    torch reads both weights without calling a layer, so peft adds the update to them before each
    call and subtracts it afterwards. That rounds: frozen weights drift by 1e-6 in 3,000 steps;
    and it adds the out-projection's update twice (peft 0.21). Here the sums stand in for the
    weights during the call alone.
    """

    def forward(self, query: Tensor, *args: Any, **kwargs: Any) -> Any:
        """What attention gives for a query [K, T, W], with the adapted weights."""
        base = self.get_base_layer()
        return functional_call(base, self._sums(), (query, *args), kwargs, tie_weights=False)

    @torch.no_grad()
    def plain_attention(self) -> nn.MultiheadAttention:
        """The plain attention with the adapted weights; this layer is of no use afterwards."""
        base: Any = self.get_base_layer()
        for key, weight in self._sums().items():
            base.get_parameter(key).copy_(weight)
        base.out_proj = base.out_proj.get_base_layer()
        attention: nn.MultiheadAttention = base
        return attention

    def _sums(self) -> dict[str, Tensor]:
        """The weights with their updates, by their names below the base layer."""
        base: Any = self.get_base_layer()
        out = base.out_proj
        return {
            "in_proj_weight": base.in_proj_weight + self.get_delta_weight(ADAPTER),
            "out_proj.base_layer.weight": out.weight + out.get_delta_weight(ADAPTER),
        }
