"""SigLIP's image tower, timm's vision transformer with an attention pool, as SiglipVisionModel."""

from __future__ import annotations

from typing import Any

import torch
from timm.layers.attention_pool import AttentionPoolLatent
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

# timm's names of layers for the same two functions as torch's.
_ACTIVATIONS = {"GELU": "gelu", "GELUTanh": "gelu_pytorch_tanh"}


def of_siglip(trunk: Any) -> bool:
    """Whether a trunk of timm is built as SiglipVisionModel is."""
    if not isinstance(trunk, VisionTransformer) or trunk.global_pool != "map":
        return False
    pool: Any = trunk.attn_pool
    first: Any = trunk.blocks[0]
    if not isinstance(trunk.attn_pool, AttentionPoolLatent) or pool.mlp is None:
        return False
    absent: tuple[nn.Module, ...] = (trunk.norm_pre, trunk.fc_norm, trunk.head)
    absent += (pool.q_norm, pool.k_norm, first.ls1, first.ls2)
    absent += (first.attn.q_norm, first.attn.k_norm, first.attn.norm)
    return (
        all(isinstance(layer, nn.Identity) for layer in absent)
        and first.attn.gate is None
        and first.attn.qkv.bias is not None
        and isinstance(pool.q, nn.Linear)
        and (trunk.num_prefix_tokens, pool.latent_len, pool.pos_embed) == (0, 1, None)
        and trunk.pos_embed is not None
        and _shape(pool.norm, pool.mlp, pool.num_heads)
        == _shape(first.norm1, first.mlp, first.attn.num_heads)
        == _shape(trunk.norm, first.mlp, first.attn.num_heads)
        and activation(first.mlp.act) is not None
    )


def _shape(norm: Any, mlp: Any, heads: int) -> tuple[float, int, str | None, int]:
    """What SiglipVisionConfig holds once for the blocks and the pool."""
    return norm.eps, mlp.fc1.out_features, activation(mlp.act), heads


def activation(layer: nn.Module) -> str | None:
    """Its name in transformers; None for one that is no GELU."""
    if isinstance(layer, nn.GELU):
        return "gelu" if layer.approximate == "none" else "gelu_pytorch_tanh"
    return _ACTIVATIONS.get(type(layer).__name__)


def siglip_image_tower(trunk: Any) -> tuple[Any, dict[str, Tensor]]:
    """SiglipVisionConfig of a trunk for which `of_siglip` holds, and its weights by name."""
    from transformers import SiglipVisionConfig

    first, conv = trunk.blocks[0], trunk.patch_embed.proj
    config = SiglipVisionConfig(
        image_size=trunk.patch_embed.img_size[0],
        patch_size=conv.kernel_size[0],
        hidden_size=trunk.embed_dim,
        intermediate_size=first.mlp.fc1.out_features,
        num_hidden_layers=len(trunk.blocks),
        num_attention_heads=first.attn.num_heads,
        hidden_act=str(activation(first.mlp.act)),
        layer_norm_eps=first.norm1.eps,
    )
    layers = {"embeddings.patch_embedding": conv, "post_layernorm": trunk.norm}
    weights = {
        "embeddings.position_embedding.weight": trunk.pos_embed[0],
        **_pool_inputs(trunk.attn_pool),
    }
    for number, block in enumerate(trunk.blocks):
        place = f"encoder.layers.{number}"
        weights |= _fused(block.attn.qkv, f"{place}.self_attn")
        layers |= {
            f"{place}.self_attn.out_proj": block.attn.proj,
            f"{place}.layer_norm1": block.norm1,
            f"{place}.layer_norm2": block.norm2,
            f"{place}.mlp.fc1": block.mlp.fc1,
            f"{place}.mlp.fc2": block.mlp.fc2,
        }
    pool = trunk.attn_pool
    layers |= {
        "head.attention.out_proj": pool.proj,
        "head.layernorm": pool.norm,
        "head.mlp.fc1": pool.mlp.fc1,
        "head.mlp.fc2": pool.mlp.fc2,
    }
    for name, layer in layers.items():
        weights |= {f"{name}.weight": layer.weight, f"{name}.bias": layer.bias}
    return config, weights


def _fused(layer: nn.Linear, place: str) -> dict[str, Tensor]:
    parts = zip("qkv", layer.weight.chunk(3), layer.bias.chunk(3), strict=True)
    return {
        f"{place}.{name}_proj.{kind}": tensor
        for name, weight, bias in parts
        for kind, tensor in (("weight", weight), ("bias", bias))
    }


def _pool_inputs(pool: Any) -> dict[str, Tensor]:
    """The pool asks with a latent of its own: torch's attention keeps q, k and v in one."""
    return {
        "head.probe": pool.latent,
        "head.attention.in_proj_weight": torch.cat([pool.q.weight, pool.kv.weight]),
        "head.attention.in_proj_bias": torch.cat([pool.q.bias, pool.kv.bias]),
    }
