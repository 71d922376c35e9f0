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

from compo_pipeline.configuration import SettingsError
from compo_pipeline.models.encoding import pool_type, text_tower
from compo_pipeline.models.loading import LoadedModel

# CLIPTextModel takes this number for "the largest id of a text marks its end", as old
# configurations of transformers said; no other end can have it.
ARGMAX = 2


@dataclass(frozen=True, eq=False)
class Tower:
    """One tower of a model of transformers.

    Attributes:
        config: of transformers; its type says which tower this is.
        weights: by their names in that tower.
        projection: [D, W] into the joint space; None where the tower ends there.
    """

    config: Any
    weights: dict[str, Tensor]
    projection: Tensor | None


def refused(part: str, reason: str) -> SettingsError:
    """The error for a part that transformers has no counterpart of."""
    return SettingsError(
        f"no Hugging Face folder can hold this model: its {part}: {reason}. "
        "Set export.hugging_face to false; the open_clip folder holds every model, ONNX files most"
    )


def image_tower(model: Any) -> Tower:
    """The image tower of an open_clip model.

    Raises:
        SettingsError: transformers has no such tower.
    """
    visual = model.visual
    if isinstance(visual, VisionTransformer):
        return _vision_transformer(visual)
    if isinstance(visual, TimmModel):
        projection = _timm_projection(visual)
        if of_siglip(visual.trunk):
            return Tower(*siglip_image_tower(visual.trunk), projection)
        return _timm(visual, projection)
    kind = "a ModifiedResNet" if isinstance(visual, ModifiedResNet) else f"a {type(visual)}"
    raise refused("image tower", f"{kind} is none of transformers' models")


def _vision_transformer(visual: VisionTransformer) -> Tower:
    from transformers import CLIPVisionConfig

    part = "image tower"
    if visual.attn_pool is not None or visual.pool_type != "tok":
        raise refused(part, "CLIPVisionModel pools its class token, not patches or attention")
    if isinstance(visual.ln_pre, nn.Identity):
        raise refused(part, "CLIPVisionModel always has a norm before its first block (no_ln_pre)")
    shape = _shape(visual.transformer, (visual.ln_pre, visual.ln_post), part)
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
        **_named("pre_layrnorm", visual.ln_pre),
        **_named("post_layernorm", visual.ln_post),
        **_blocks(visual.transformer),
    }
    return Tower(config, weights, visual.proj.T)


def _timm_projection(visual: TimmModel) -> Tensor | None:
    layers = dict(visual.head.named_children())
    layers.pop("drop", None)
    projection = layers.pop("proj", None)
    if layers or getattr(projection, "bias", None) is not None:
        raise refused("image tower", "its head is more than a linear projection without bias")
    return None if projection is None else projection.weight


def _timm(visual: TimmModel, projection: Tensor | None) -> Tower:
    """Any other trunk of timm, which transformers builds through timm itself.

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
    raise refused("image tower", f"TimmWrapperModel builds no {name} with these weights")


def text_part(loaded: LoadedModel) -> Tower:
    """The text tower of an open_clip model.

    Raises:
        SettingsError: transformers has no such tower.
    """
    tower = text_tower(loaded.model)
    if tower is None:
        raise refused("text tower", "only open_clip's own text transformers are converted")
    pooled, causal = pool_type(tower), tower.attn_mask is not None
    if causal and pooled in ("argmax", "eos"):
        return _clip_text(loaded, tower, pooled)
    if not causal and pooled == "last":
        return _siglip_text(tower)
    mask = "with" if causal else "without"
    raise refused(
        "text tower",
        f"pools '{pooled}' {mask} a causal mask; CLIPTextModel pools the end of a causal text, "
        "SiglipTextModel the last place of one that sees all",
    )


def _clip_text(loaded: LoadedModel, tower: Any, pooled: str) -> Tower:
    from transformers import CLIPTextConfig

    projection = tower.text_projection
    if isinstance(projection, nn.Linear):
        if getattr(projection, "bias", None) is not None:
            raise refused("text tower", "CLIPModel's text projection has no bias (proj_bias)")
        projection = projection.weight.T
    inner = getattr(loaded.tokenize, "tokenizer", loaded.tokenize)
    config = CLIPTextConfig(
        max_position_embeddings=tower.positional_embedding.shape[0],
        vocab_size=tower.token_embedding.num_embeddings,
        projection_dim=loaded.config["model_cfg"]["embed_dim"],
        eos_token_id=_end(loaded, tower, pooled),
        bos_token_id=getattr(inner, "sot_token_id", getattr(inner, "bos_token_id", None)),
        pad_token_id=getattr(inner, "eot_token_id", getattr(inner, "pad_token_id", None)),
        **_shape(tower.transformer, (tower.ln_final,), "text tower"),
    )
    return Tower(config, _text_weights(tower), None if projection is None else projection.T)


def _end(loaded: LoadedModel, tower: Any, pooled: str) -> int:
    """The id at which CLIPTextModel pools: the first of this number, or see ARGMAX."""
    if pooled == "argmax":
        # CLIP's own end is the largest id that its tokenizer writes: the same place. Any other
        # vocabulary may have larger ids in a text, and open_clip pools at those.
        tokenize: Any = loaded.tokenize
        return int(tokenize.eot_token_id) if isinstance(tokenize, SimpleTokenizer) else ARGMAX
    end = int(tower.eos_id if hasattr(tower, "eos_id") else tower.text_eos_id)
    if end == ARGMAX:
        raise refused(
            "text tower",
            "pools at the token 2, which CLIPTextModel takes for the largest id of a text",
        )
    return end


def _siglip_text(tower: Any) -> Tower:
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
        **_shape(tower.transformer, (tower.ln_final,), "text tower"),
    )
    zeros = torch.zeros(weight.shape[0])
    ends = {"head.weight": weight, "head.bias": zeros if bias is None else bias}
    return Tower(config, {**_text_weights(tower), **ends}, None)


def _text_weights(tower: Any) -> dict[str, Tensor]:
    return {
        "embeddings.token_embedding.weight": tower.token_embedding.weight,
        "embeddings.position_embedding.weight": tower.positional_embedding,
        **_named("final_layer_norm", tower.ln_final),
        **_blocks(tower.transformer),
    }


def _shape(transformer: Any, norms: Iterable[Any], part: str) -> dict[str, Any]:
    """What CLIP's and SigLIP's configurations call the same, of a transformer and its norms."""
    blocks = list(transformer.resblocks)
    if any(type(block) is not ResidualAttentionBlock for block in blocks):
        raise refused(part, "its attention blocks are open_clip's custom ones")
    epsilons = {norm.eps for norm in norms}
    epsilons |= {norm.eps for block in blocks for norm in (block.ln_1, block.ln_2)}
    if len(epsilons) > 1:
        raise refused(part, f"its norms have several epsilons ({epsilons})")
    return {
        "hidden_size": transformer.width,
        "intermediate_size": blocks[0].mlp.c_fc.out_features,
        "num_hidden_layers": len(blocks),
        "num_attention_heads": blocks[0].attn.num_heads,
        "hidden_act": _activation(blocks[0].mlp.gelu, part),
        "layer_norm_eps": epsilons.pop(),
    }


def _activation(layer: nn.Module, part: str) -> str:
    name = "quick_gelu" if isinstance(layer, QuickGELU) else activation(layer)
    if name is None:
        raise refused(part, f"the activation {layer} has no name in transformers here")
    return name


def _blocks(transformer: Any) -> dict[str, Tensor]:
    """Weights of the blocks: the fused attention input in three, layer scales multiplied in."""
    weights: dict[str, Tensor] = {}
    for number, block in enumerate(transformer.resblocks):
        inputs = block.attn.in_proj_weight.chunk(3), block.attn.in_proj_bias.chunk(3)
        fused = zip("qkv", *inputs, strict=True)
        places = {f"{name}_proj": (weight, bias) for name, weight, bias in fused}
        places["out_proj"] = _scaled(block.attn.out_proj, block.ls_1)
        named = {f"self_attn.{name}": pair for name, pair in places.items()}
        named["mlp.fc1"] = (block.mlp.c_fc.weight, block.mlp.c_fc.bias)
        named["mlp.fc2"] = _scaled(block.mlp.c_proj, block.ls_2)
        named["layer_norm1"] = (block.ln_1.weight, block.ln_1.bias)
        named["layer_norm2"] = (block.ln_2.weight, block.ln_2.bias)
        for name, (weight, bias) in named.items():
            weights[f"encoder.layers.{number}.{name}.weight"] = weight
            weights[f"encoder.layers.{number}.{name}.bias"] = bias
    return weights


def _scaled(layer: nn.Linear, scale: nn.Module) -> tuple[Tensor, Tensor]:
    gamma = getattr(scale, "gamma", None)
    if gamma is None:
        return layer.weight, layer.bias
    return gamma[:, None] * layer.weight, gamma * layer.bias


def _named(name: str, layer: Any) -> dict[str, Tensor]:
    return {f"{name}.weight": layer.weight, f"{name}.bias": layer.bias}


# timm's names of layers for the same two functions as torch's.
_ACTIVATIONS = {"GELU": "gelu", "GELUTanh": "gelu_pytorch_tanh"}


def of_siglip(trunk: Any) -> bool:
    """Whether a trunk of timm is built as SiglipVisionModel is."""
    if not isinstance(trunk, TimmTransformer) or trunk.global_pool != "map":
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
        and _block_shape(pool.norm, pool.mlp, pool.num_heads)
        == _block_shape(first.norm1, first.mlp, first.attn.num_heads)
        == _block_shape(trunk.norm, first.mlp, first.attn.num_heads)
        and activation(first.mlp.act) is not None
    )


def _block_shape(norm: Any, mlp: Any, heads: int) -> tuple[float, int, str | None, int]:
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
    """The pool has its own latent query: torch's attention keeps q, k and v in one."""
    return {
        "head.probe": pool.latent,
        "head.attention.in_proj_weight": torch.cat([pool.q.weight, pool.kv.weight]),
        "head.attention.in_proj_bias": torch.cat([pool.q.bias, pool.kv.bias]),
    }
