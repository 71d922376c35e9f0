"""Folders of transformers: CLIP, MetaCLIP 2, Chinese-CLIP, SigLIP, in open_clip's terms.

Numbers and tensors are read, and nothing of a folder is run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import open_clip
import torch
from torch import Tensor

from compo_pipeline.core.settings import SettingsError
from compo_pipeline.core.untrusted import shown
from compo_pipeline.models.foreign import BERT_KEYS, read_object

_TOWERS = ("vision-encoder", "text-encoder")
# Token ids of a text in Chinese-CLIP's own code; its positions are BERT's 512.
_CHINESE_LENGTH = 52
# Parts of names in transformers, and in open_clip's own transformers and SigLIP's image tower of
# timm; replaced in this order.
_OWN = (
    ("embeddings.class_embedding", "class_embedding"),
    ("embeddings.patch_embedding", "conv1"),
    ("embeddings.token_embedding", "token_embedding"),
    ("embeddings.position_embedding.weight", "positional_embedding"),
    ("pre_layrnorm", "ln_pre"),  # transformers' own spelling
    ("post_layernorm", "ln_post"),
    ("final_layer_norm", "ln_final"),
    ("head.", "text_projection."),  # SigLIP's
    ("encoder.layers.", "transformer.resblocks."),
    ("self_attn.qkv.weight", "attn.in_proj_weight"),
    ("self_attn.qkv.bias", "attn.in_proj_bias"),
    ("self_attn.", "attn."),
    ("mlp.fc1", "mlp.c_fc"),
    ("mlp.fc2", "mlp.c_proj"),
    ("layer_norm", "ln_"),
)
_TIMM = (
    ("embeddings.patch_embedding", "patch_embed.proj"),
    ("embeddings.position_embedding.weight", "pos_embed"),
    ("post_layernorm", "norm"),
    ("head.probe", "attn_pool.latent"),
    ("head.attention.out_proj", "attn_pool.proj"),
    ("head.layernorm", "attn_pool.norm"),
    ("head.", "attn_pool."),
    ("encoder.layers.", "blocks."),
    ("self_attn.out_proj", "attn.proj"),
    ("self_attn.", "attn."),
    ("layer_norm", "norm"),
)
_VISION, _TEXTS = "vision_model.", "text_model."
# By a part of a name that only one kind of tower has: the place in open_clip. The first that is
# there holds for the tower.
_PLACES: dict[str, dict[str, tuple[str, tuple[tuple[str, str], ...]]]] = {
    _VISION: {"head.": ("visual.trunk.", _TIMM), "": ("visual.", _OWN)},
    _TEXTS: {
        "head.": ("text.", _OWN),
        "encoder.layer.": ("text.transformer.", ()),  # BERT's
        "": ("", _OWN),
    },
}


def is_transformers_folder(folder: Path) -> bool:
    """Whether a folder holds a transformers model, as a whole or with a folder for each tower."""
    return (folder / "config.json").is_file() or has_tower_folders(folder)


def has_tower_folders(folder: Path) -> bool:
    """Whether a folder has a transformers subfolder for each of the two towers."""
    return all((folder / part / "config.json").is_file() for part in _TOWERS)


def tower_weights_files(folder: Path) -> list[Path]:
    """Paths of the two towers' weights files, in a folder with a subfolder for each tower."""
    return [folder / part / "model.safetensors" for part in _TOWERS]


def open_clip_config(folder: Path, context_length: int | None) -> dict[str, Any]:
    """Convert a transformers folder's configuration to open_clip's (`model_cfg`, `preprocess_cfg`).

    CLIP, MetaCLIP 2 and Chinese-CLIP are built by their numbers. SigLIP is the architecture of
    open_clip with the same numbers; its image tower keeps that architecture's activation.

    Args:
        folder: folder with config.json, or with a folder for each tower.
        context_length: token ids of a text; None is the model's own.

    Raises:
        SettingsError: it is a model of another kind, or one that open_clip cannot build.
    """
    import transformers as hf

    if has_tower_folders(folder):
        vision, text = (read_object(folder / part / "config.json") for part in _TOWERS)
        content: dict[str, Any] = {"model_type": "clip", "vision_config": vision}
        content["text_config"] = text
        content["projection_dim"] = text.get("projection_dim", 512)
    else:
        content = read_object(folder / "config.json")
    kinds: dict[Any, Any] = {
        "clip": hf.CLIPConfig,
        "metaclip_2": hf.MetaClip2Config,
        "chinese_clip": hf.ChineseCLIPConfig,
        "siglip": hf.SiglipConfig,
    }
    kind = content.get("model_type")
    if kind not in kinds:
        raise SettingsError(
            f"{folder}/config.json: expected a model_type of {', '.join(kinds)}, got {shown(kind)}"
        )
    try:
        config = kinds[kind].from_dict(content)
    except Exception as error:
        raise SettingsError(f"{folder}/config.json: {' '.join(str(error).split())}") from error
    if kind == "chinese_clip":
        model_cfg = _chinese_clip_config(folder, config, context_length or _CHINESE_LENGTH)
    else:
        if context_length is not None:
            config.text_config.max_position_embeddings = context_length
        model_cfg = (_siglip_config if kind == "siglip" else _clip_config)(folder, config)
    return {"model_cfg": model_cfg, "preprocess_cfg": _preprocessing(folder)}


def _clip_config(folder: Path, config: Any) -> dict[str, Any]:
    """open_clip's `model_cfg` for a transformers CLIP or MetaCLIP 2.

    Raises an error if it has no equivalent.
    """
    text = config.text_config
    text_cfg = {
        **_tower_config(text),
        "context_length": text.max_position_embeddings,
        "vocab_size": text.vocab_size,
        "heads": text.num_attention_heads,
    }
    if config.model_type == "metaclip_2":
        text_cfg |= {"pool_type": "eos", "eos_id": text.eos_token_id}
        text_cfg["hf_tokenizer_name"] = folder.resolve().name
    elif text.vocab_size != 49408:
        raise SettingsError(
            f"{folder}: CLIP's tokenizer has 49408 tokens, text_config.vocab_size is "
            f"{shown(text.vocab_size)}"
        )
    return {**_image_config(folder, config, text.hidden_act), "text_cfg": text_cfg}


def _chinese_clip_config(folder: Path, config: Any, context_length: int) -> dict[str, Any]:
    """open_clip's `model_cfg` for a transformers Chinese-CLIP, whose text tower is a BERT.

    Its texts are not cleaned: open_clip's cleaning turns Chinese punctuation into ASCII. Raises an
    error if it has no equivalent.
    """
    text = config.text_config
    if context_length > (most := text.max_position_embeddings):
        raise SettingsError(
            f"--context-length: expected at most the {most} positions of {folder}, got "
            f"{context_length}"
        )
    text_cfg = {
        "hf_model_config": {key: getattr(text, key) for key in sorted(BERT_KEYS)},
        "hf_pooler_type": "cls_last_hidden_state_pooler",
        "hf_proj_type": "linear",
        "hf_tokenizer_name": folder.resolve().name,
        "tokenizer_kwargs": {"clean": "none"},
        "context_length": context_length,
        "vocab_size": text.vocab_size,
    }
    return {**_image_config(folder, config), "text_cfg": text_cfg}


def _image_config(folder: Path, config: Any, *more: str) -> dict[str, Any]:
    """What of open_clip's `model_cfg` is not the text tower's.

    Args:
        folder: folder of the model, for errors.
        config: the model's configuration by transformers.
        more: activation of the text tower, where one setting of open_clip is for both.
    """
    vision = config.vision_config
    activations = {vision.hidden_act, *more}
    if activations not in ({"quick_gelu"}, {"gelu"}, {"gelu_pytorch_tanh"}):
        raise SettingsError(
            f"{folder}: open_clip's CLIP has hidden_act quick_gelu, gelu or gelu_pytorch_tanh in "
            f"both towers, got {shown(sorted(activations))}"
        )
    return {
        "embed_dim": config.projection_dim,
        "quick_gelu": activations == {"quick_gelu"},
        "vision_cfg": {
            **_tower_config(vision),
            "image_size": vision.image_size,
            "patch_size": vision.patch_size,
            "head_width": vision.hidden_size // vision.num_attention_heads,
        },
    }


def _tower_config(tower: Any) -> dict[str, Any]:
    """What open_clip's configurations of CLIP's two towers have in common."""
    found = {
        "width": tower.hidden_size,
        "layers": tower.num_hidden_layers,
        "mlp_ratio": tower.intermediate_size / tower.hidden_size,
    }
    if tower.layer_norm_eps != 1e-5:
        found["norm_kwargs"] = {"eps": tower.layer_norm_eps}
    if tower.hidden_act == "gelu_pytorch_tanh":
        found["act_kwargs"] = {"approximate": "tanh"}
    return found


def _siglip_config(folder: Path, config: Any) -> dict[str, Any]:
    """open_clip's `model_cfg` for a transformers SigLIP: that of the same widths and depths."""
    vision, text = config.vision_config, config.text_config
    wanted = {
        "width": text.hidden_size,
        "layers": text.num_hidden_layers,
        "heads": text.num_attention_heads,
        "vocab_size": text.vocab_size,
        "context_length": text.max_position_embeddings,
    }
    for name in open_clip.list_models():
        found: dict[str, Any] = open_clip.get_model_config(name)
        image, texts = found["vision_cfg"], found["text_cfg"]
        patch = re.search(r"patch(\d+)", image.get("timm_model_name") or "")
        if (
            texts.get("no_causal_mask")
            and image["image_size"] == vision.image_size
            and (patch is None or int(patch[1]) == vision.patch_size)
            and {key: texts.get(key) for key in wanted} == wanted
        ):
            texts.pop("act_kwargs", None)
            if text.hidden_act == "gelu_pytorch_tanh":
                texts["act_kwargs"] = {"approximate": "tanh"}
            return found
    raise SettingsError(
        f"{folder}: none of open_clip's SigLIP architectures has text_config {shown(wanted)} and "
        f"patches of {vision.patch_size} in images of {vision.image_size} pixels"
    )


def _preprocessing(folder: Path) -> dict[str, Any]:
    """open_clip's preprocessing, from a folder's image processor, empty if there is none."""
    names = ("preprocessor_config.json", "processor_config.json")
    name = next((name for name in names if (folder / name).is_file()), None)
    if name is None:
        return {}
    found = read_object(folder / name)
    found = found.get("image_processor", found)
    size = found.get("size", 224)
    crops = found.get("do_center_crop") is not False and not {"height", "width"} <= set(
        size if isinstance(size, dict) else ()
    )
    if found.get("resample", 3) not in (2, 3):
        raise SettingsError(
            f"{folder}/{name}: resample: expected 2 (bilinear) or 3 (bicubic), got "
            f"{shown(found['resample'])}"
        )
    return {
        "mean": found.get("image_mean"),
        "std": found.get("image_std"),
        "interpolation": "bilinear" if found.get("resample") == 2 else "bicubic",
        "resize_mode": "shortest" if crops else "squash",
    }


def to_open_clip_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the tensors of a transformers model, or of one of its towers, to open_clip's names.

    Tensors are joined, split and transposed, and no number changes: the derivative of this function
    is the way back, by which `hf_export` writes models.
    """
    places = {
        tower: next(place for mark, place in kinds.items() if any(tower + mark in n for n in state))
        for tower, kinds in _PLACES.items()
        if any(tower in name for name in state)
    }
    found = {}
    for name, tensor in _fuse_attention(state).items():
        if tower := next((tower for tower in places if tower in name), None):
            place, replaced = places[tower]
            name = name.partition(tower)[2]
            for old, new in replaced:
                name = name.replace(old, new)
            name = f"{place}{name}"
        if not name.endswith(".position_ids"):  # a buffer of older versions
            found[name] = tensor
    if places.get(_TEXTS) == _PLACES[_TEXTS]["encoder.layer."]:
        found["text.proj.weight"] = found.pop("text_projection.weight")
    for name, own in (("visual_projection", "visual.proj"), ("text_projection", "text_projection")):
        if (projection := found.pop(f"{name}.weight", None)) is not None:
            found[own] = projection.T.contiguous()
    if (positions := found.get("visual.trunk.pos_embed")) is not None:
        found["visual.trunk.pos_embed"] = positions[None]
    # The towers by themselves have no scale; it changes no ranking.
    found.setdefault("logit_scale", torch.tensor(100.0).log())
    return found


def _fuse_attention(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """State dict with attention's q, k, v weights joined, and the pooling's fused input split."""
    found = {}
    for name, tensor in state.items():
        layer, _, kind = name.rpartition(".")
        if layer.endswith(".q_proj"):
            start = layer.removesuffix("q_proj")
            inputs = [state[f"{start}{each}_proj.{kind}"] for each in "qkv"]
            found[f"{start}qkv.{kind}"] = torch.cat(inputs)
        elif "head.attention.in_proj_" in name:
            start, _, kind = name.partition("attention.in_proj_")
            width = len(tensor) // 3
            found[f"{start}q.{kind}"], found[f"{start}kv.{kind}"] = tensor[:width], tensor[width:]
        elif not layer.endswith((".k_proj", ".v_proj")):
            found[name] = tensor
    return found
