"""open_clip's towers as those of transformers: configuration, weights and projection of each.

What transformers has no counterpart of is refused, and the message names the part. Shapes: W
width of a tower, D width of the joint space.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from open_clip.modified_resnet import ModifiedResNet
from open_clip.timm_model import TimmModel
from open_clip.tokenizer import SimpleTokenizer
from open_clip.transformer import QuickGELU, ResidualAttentionBlock, VisionTransformer
from timm.layers.attention_pool import AttentionPoolLatent
from timm.models.vision_transformer import VisionTransformer as TimmTransformer
from torch import Tensor, nn

from compo_pipeline.configuration.settings import SettingsError
from compo_pipeline.models.encoding import pool_type, text_tower
from compo_pipeline.models.loading import LoadedModel

# CLIPTextModel takes this number for "the largest id of a text marks its end", as old
# configurations of transformers said; no other end can have it.
ARGMAX = 2


@dataclass(frozen=True, eq=False)
class Tower:
    """Configuration, weights and projection of an image or text tower for transformers.

    Attributes:
        config: of transformers; its type says which tower this is.
        weights: by their names in that tower.
        projection: [D, W] into the joint space; None where the tower ends there.
    """

    config: Any
    weights: dict[str, Tensor]
    projection: Tensor | None


def unsupported_error(part: str, reason: str) -> SettingsError:
    """The error to raise for a part of a model that transformers has no counterpart of."""
    return SettingsError(
        f"no Hugging Face folder can hold this model: its {part}: {reason}. "
        "Set export.hugging_face to false; the open_clip folder holds every model, ONNX files most"
    )


def image_tower(model: Any) -> Tower:
    """Convert the image tower of an open_clip model to transformers.

    Raises:
        SettingsError: transformers has no such tower.
    """
    visual = model.visual
    if isinstance(visual, VisionTransformer):
        return _clip_image(visual)
    if isinstance(visual, TimmModel):
        projection = _timm_projection(visual)
        if _is_siglip(visual.trunk):
            return _siglip_image(visual.trunk, projection)
        return _timm_tower(visual, projection)
    kind = "a ModifiedResNet" if isinstance(visual, ModifiedResNet) else f"a {type(visual)}"
    raise unsupported_error("image tower", f"{kind} is none of transformers' models")


def _clip_image(visual: VisionTransformer) -> Tower:
    """Convert open_clip's VisionTransformer to a CLIPVisionModel of transformers."""
    from transformers import CLIPVisionConfig

    part = "image tower"
    if visual.attn_pool is not None or visual.pool_type != "tok":
        raise unsupported_error(
            part, "CLIPVisionModel pools its class token, not patches or attention"
        )
    if isinstance(visual.ln_pre, nn.Identity):
        raise unsupported_error(
            part, "CLIPVisionModel always has a norm before its first block (no_ln_pre)"
        )
    shape = _config_values(visual.transformer, (visual.ln_pre, visual.ln_post), part)
    config = CLIPVisionConfig(
        image_size=visual.image_size[0],
        patch_size=visual.patch_size[0],
        projection_dim=visual.output_dim,
        **shape,
    )
    weights = {
        "embeddings.class_embedding": visual.class_embedding,
        "embeddings.patch_embedding.weight": visual.conv1.weight,
        "embeddings.position_embedding.weight": visual.positional_embedding,
        # transformers' own spelling.
        **_layer_weights("pre_layrnorm", visual.ln_pre),
        **_layer_weights("post_layernorm", visual.ln_post),
        **_block_weights(visual.transformer),
    }
    return Tower(config, weights, visual.proj.T)


def _timm_projection(visual: TimmModel) -> Tensor | None:
    """Weight of the linear projection in a timm tower's head; None without a projection."""
    layers = dict(visual.head.named_children())
    layers.pop("drop", None)
    projection = layers.pop("proj", None)
    if layers or getattr(projection, "bias", None) is not None:
        raise unsupported_error(
            "image tower", "its head is more than a linear projection without bias"
        )
    return None if projection is None else projection.weight


def _timm_tower(visual: TimmModel, projection: Tensor | None) -> Tower:
    """Convert a timm image tower to a TimmWrapperModel of transformers.

    open_clip changes the pooling of a finished trunk, TimmWrapper asks for it while it builds;
    where timm puts the final norm can depend on that, so the one that has these weights is taken.
    """
    import timm
    from transformers import TimmWrapperConfig

    trunk, name = visual.trunk, str(visual.trunk.default_cfg["architecture"])
    wanted = {key: value.shape for key, value in trunk.state_dict().items()}
    pool = {"global_pool": trunk.global_pool} if hasattr(trunk, "global_pool") else {}
    for arguments in (pool, {**pool, "fc_norm": False}, {}):
        try:
            with torch.random.fork_rng(devices=[]):
                built = timm.create_model(name, num_classes=0, **arguments)
        except TypeError:
            continue  # this architecture knows no such argument
        if {key: value.shape for key, value in built.state_dict().items()} == wanted:
            # Not in the class's signature: VisionTextDualEncoderModel asks for it.
            width = {"hidden_size": trunk.num_features}
            config = TimmWrapperConfig(architecture=name, model_args=arguments, **width)
            weights = {f"timm_model.{key}": value for key, value in trunk.state_dict().items()}
            return Tower(config, weights, projection)
    raise unsupported_error("image tower", f"TimmWrapperModel builds no {name} with these weights")


def text_part(loaded: LoadedModel) -> Tower:
    """Convert the text tower of an open_clip model to transformers.

    Raises:
        SettingsError: transformers has no such tower.
    """
    tower = text_tower(loaded.model)
    if tower is None:
        raise unsupported_error(
            "text tower", "only open_clip's own text transformers are converted"
        )
    pooled, causal = pool_type(tower), tower.attn_mask is not None
    if causal and pooled in ("argmax", "eos"):
        return _clip_text(loaded, tower, pooled)
    if not causal and pooled == "last":
        return _siglip_text(tower)
    mask = "with" if causal else "without"
    raise unsupported_error(
        "text tower",
        f"pools '{pooled}' {mask} a causal mask; CLIPTextModel pools the end of a causal text, "
        "SiglipTextModel the last place of one that sees all",
    )


def _clip_text(loaded: LoadedModel, tower: Any, pooled: str) -> Tower:
    """Convert a causal text tower, pooled at the end of the text, to a CLIPTextModel."""
    from transformers import CLIPTextConfig

    projection = tower.text_projection
    if isinstance(projection, nn.Linear):
        if getattr(projection, "bias", None) is not None:
            raise unsupported_error(
                "text tower", "CLIPModel's text projection has no bias (proj_bias)"
            )
        projection = projection.weight.T
    inner = getattr(loaded.tokenize, "tokenizer", loaded.tokenize)
    config = CLIPTextConfig(
        max_position_embeddings=tower.positional_embedding.shape[0],
        vocab_size=tower.token_embedding.num_embeddings,
        projection_dim=loaded.config["model_cfg"]["embed_dim"],
        eos_token_id=_end_token(loaded, tower, pooled),
        bos_token_id=getattr(inner, "sot_token_id", getattr(inner, "bos_token_id", None)),
        pad_token_id=getattr(inner, "eot_token_id", getattr(inner, "pad_token_id", None)),
        **_config_values(tower.transformer, (tower.ln_final,), "text tower"),
    )
    return Tower(config, _text_weights(tower), None if projection is None else projection.T)


def _end_token(loaded: LoadedModel, tower: Any, pooled: str) -> int:
    """Id of the token at which CLIPTextModel pools a text; `ARGMAX` for the largest id."""
    if pooled == "argmax":
        # CLIP's own end is the largest id that its tokenizer writes: the same place. Any other
        # vocabulary may have larger ids in a text, and open_clip pools at those.
        tokenize: Any = loaded.tokenize
        return int(tokenize.eot_token_id) if isinstance(tokenize, SimpleTokenizer) else ARGMAX
    end = int(tower.eos_id if hasattr(tower, "eos_id") else tower.text_eos_id)
    if end == ARGMAX:
        raise unsupported_error(
            "text tower",
            "pools at the token 2, which CLIPTextModel takes for the largest id of a text",
        )
    return end


def _siglip_text(tower: Any) -> Tower:
    """Convert a text tower without causal mask, pooled at the last token, to a SiglipTextModel."""
    from transformers import SiglipTextConfig

    width = tower.token_embedding.embedding_dim
    head = tower.text_projection
    if isinstance(head, nn.Linear):
        weight, bias = head.weight, head.bias
    else:
        weight, bias = (torch.eye(width) if head is None else head.T), None
    config = SiglipTextConfig(
        max_position_embeddings=tower.positional_embedding.shape[0],
        vocab_size=tower.token_embedding.num_embeddings,
        projection_size=weight.shape[0],
        **_config_values(tower.transformer, (tower.ln_final,), "text tower"),
    )
    zeros = torch.zeros(weight.shape[0])
    ends = {"head.weight": weight, "head.bias": zeros if bias is None else bias}
    return Tower(config, {**_text_weights(tower), **ends}, None)


def _text_weights(tower: Any) -> dict[str, Tensor]:
    """Weights of a text tower without its head, under transformers' names."""
    return {
        "embeddings.token_embedding.weight": tower.token_embedding.weight,
        "embeddings.position_embedding.weight": tower.positional_embedding,
        **_layer_weights("final_layer_norm", tower.ln_final),
        **_block_weights(tower.transformer),
    }


def _config_values(transformer: Any, norms: Iterable[Any], part: str) -> dict[str, Any]:
    """Values for a CLIP or SigLIP configuration, read from open_clip's blocks and norms."""
    blocks = list(transformer.resblocks)
    if any(type(block) is not ResidualAttentionBlock for block in blocks):
        raise unsupported_error(part, "its attention blocks are open_clip's custom ones")
    epsilons = {norm.eps for norm in norms}
    epsilons |= {norm.eps for block in blocks for norm in (block.ln_1, block.ln_2)}
    if len(epsilons) > 1:
        raise unsupported_error(part, f"its norms have several epsilons ({epsilons})")
    hidden_act = _activation(blocks[0].mlp.gelu)
    if hidden_act is None:
        raise unsupported_error(
            part, f"the activation {blocks[0].mlp.gelu} has no name in transformers here"
        )
    return {
        "hidden_size": transformer.width,
        "intermediate_size": blocks[0].mlp.c_fc.out_features,
        "num_hidden_layers": len(blocks),
        "num_attention_heads": blocks[0].attn.num_heads,
        "hidden_act": hidden_act,
        "layer_norm_eps": epsilons.pop(),
    }


def _block_weights(transformer: Any) -> dict[str, Tensor]:
    """Weights of transformer blocks under transformers' names.

    The fused attention input is split in three, layer scales are multiplied in.
    """
    weights: dict[str, Tensor] = {}
    for number, block in enumerate(transformer.resblocks):
        place = f"encoder.layers.{number}"
        weights |= {
            **_split_attention(
                f"{place}.self_attn", block.attn.in_proj_weight, block.attn.in_proj_bias
            ),
            **_scaled_weights(f"{place}.self_attn.out_proj", block.attn.out_proj, block.ls_1),
            **_layer_weights(f"{place}.mlp.fc1", block.mlp.c_fc),
            **_scaled_weights(f"{place}.mlp.fc2", block.mlp.c_proj, block.ls_2),
            **_layer_weights(f"{place}.layer_norm1", block.ln_1),
            **_layer_weights(f"{place}.layer_norm2", block.ln_2),
        }
    return weights


def _split_attention(place: str, weight: Tensor, bias: Tensor) -> dict[str, Tensor]:
    """Weights and biases of queries, keys and values, split from the fused in-projection."""
    weights: dict[str, Tensor] = {}
    for name, w, b in zip("qkv", weight.chunk(3), bias.chunk(3), strict=True):
        weights |= {f"{place}.{name}_proj.weight": w, f"{place}.{name}_proj.bias": b}
    return weights


def _layer_weights(name: str, layer: Any) -> dict[str, Tensor]:
    """Weight and bias of a layer under transformers' names."""
    return {f"{name}.weight": layer.weight, f"{name}.bias": layer.bias}


def _scaled_weights(name: str, layer: nn.Linear, scale: nn.Module) -> dict[str, Tensor]:
    """Weight and bias of a layer, multiplied by the layer scale (LayerScale) that follows it."""
    gamma = getattr(scale, "gamma", None)
    if gamma is None:
        return _layer_weights(name, layer)
    return {f"{name}.weight": gamma[:, None] * layer.weight, f"{name}.bias": gamma * layer.bias}


def _is_siglip(trunk: Any) -> bool:
    """Whether a timm image tower has just the layers of a SiglipVisionModel."""
    if not isinstance(trunk, TimmTransformer) or trunk.global_pool != "map":
        return False
    pool: Any = trunk.attn_pool
    first: Any = trunk.blocks[0]
    if not isinstance(trunk.attn_pool, AttentionPoolLatent) or pool.mlp is None:
        return False
    absent: list[nn.Module] = [trunk.norm_pre, trunk.fc_norm, trunk.head, pool.q_norm, pool.k_norm]
    absent += [first.ls1, first.ls2, first.attn.q_norm, first.attn.k_norm, first.attn.norm]
    return (
        all(isinstance(layer, nn.Identity) for layer in absent)
        and first.attn.gate is None
        and first.attn.qkv.bias is not None
        and isinstance(pool.q, nn.Linear)
        and (trunk.num_prefix_tokens, pool.latent_len, pool.pos_embed) == (0, 1, None)
        and trunk.pos_embed is not None
        and _block_shape(pool.norm, pool.mlp, pool.num_heads)
        == _block_shape(first.norm1, first.mlp, first.attn.num_heads)
        == _block_shape(trunk.norm, first.mlp, first.attn.num_heads)
        and _activation(first.mlp.act) is not None
    )


def _block_shape(norm: Any, mlp: Any, heads: int) -> tuple[float, int, str | None, int]:
    """Norm epsilon, MLP width, activation and head count, which all blocks must share."""
    return norm.eps, mlp.fc1.out_features, _activation(mlp.act), heads


def _activation(layer: nn.Module) -> str | None:
    """Name in transformers of an activation layer; None for one that is no GELU."""
    if isinstance(layer, QuickGELU):
        return "quick_gelu"
    if isinstance(layer, nn.GELU):
        return "gelu" if layer.approximate == "none" else "gelu_pytorch_tanh"
    # timm's own layers for the same two functions.
    return {"GELU": "gelu", "GELUTanh": "gelu_pytorch_tanh"}.get(type(layer).__name__)


def _siglip_image(trunk: Any, projection: Tensor | None) -> Tower:
    """Convert a timm tower for which `_is_siglip` holds to a SiglipVisionModel."""
    from transformers import SiglipVisionConfig

    first, conv = trunk.blocks[0], trunk.patch_embed.proj
    config = SiglipVisionConfig(
        image_size=trunk.patch_embed.img_size[0],
        patch_size=conv.kernel_size[0],
        hidden_size=trunk.embed_dim,
        intermediate_size=first.mlp.fc1.out_features,
        num_hidden_layers=len(trunk.blocks),
        num_attention_heads=first.attn.num_heads,
        hidden_act=str(_activation(first.mlp.act)),
        layer_norm_eps=first.norm1.eps,
    )
    pool = trunk.attn_pool
    weights = {
        "embeddings.position_embedding.weight": trunk.pos_embed[0],
        **_layer_weights("embeddings.patch_embedding", conv),
        **_layer_weights("post_layernorm", trunk.norm),
        # The pool has its own latent query: torch's attention keeps q, k and v in one.
        "head.probe": pool.latent,
        "head.attention.in_proj_weight": torch.cat([pool.q.weight, pool.kv.weight]),
        "head.attention.in_proj_bias": torch.cat([pool.q.bias, pool.kv.bias]),
        **_layer_weights("head.attention.out_proj", pool.proj),
        **_layer_weights("head.layernorm", pool.norm),
        **_layer_weights("head.mlp.fc1", pool.mlp.fc1),
        **_layer_weights("head.mlp.fc2", pool.mlp.fc2),
    }
    for number, block in enumerate(trunk.blocks):
        place = f"encoder.layers.{number}"
        weights |= {
            **_split_attention(f"{place}.self_attn", block.attn.qkv.weight, block.attn.qkv.bias),
            **_layer_weights(f"{place}.self_attn.out_proj", block.attn.proj),
            **_layer_weights(f"{place}.layer_norm1", block.norm1),
            **_layer_weights(f"{place}.layer_norm2", block.norm2),
            **_layer_weights(f"{place}.mlp.fc1", block.mlp.fc1),
            **_layer_weights(f"{place}.mlp.fc2", block.mlp.fc2),
        }
    return Tower(config, weights, projection)
