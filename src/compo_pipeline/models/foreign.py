"""What the configuration files of a foreign model folder may say.

Libraries run code that a folder brings, or fetch and read other models, where its configuration
asks for it. So keys are refused that are not known to describe a network.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compo_pipeline.configuration.settings import SettingsError, leaves, nearest
from compo_pipeline.storage.untrusted import read_json, shown

# Keys with which transformers and diffusers run a folder's own Python files.
_CODE = frozenset({"auto_map", "trust_remote_code", "custom_generate"})
# The keys that each part of an open_clip_config.json may have.
_KEYS = {
    "model_cfg": """
        embed_dim vision_cfg text_cfg multimodal_cfg quick_gelu custom_text init_logit_scale
        init_logit_bias nonscalar_logit_scale
    """,
    "model_cfg.vision_cfg": """
        layers width head_width mlp_ratio patch_size image_size ls_init_value patch_dropout
        attentional_pool attn_pooler_queries attn_pooler_heads no_ln_pre pos_embed_type
        final_ln_after_pool pool_type output_tokens act_kwargs norm_kwargs block_type qk_norm
        scaled_cosine_attn scale_heads scale_attn_inner scale_attn scale_fc timm_model_name
        timm_model_pretrained timm_pool timm_proj timm_proj_bias timm_drop timm_drop_path
    """,
    "model_cfg.text_cfg": """
        context_length vocab_size width heads layers mlp_ratio ls_init_value embed_cls pad_id eos_id
        no_causal_mask pool_type final_ln_after_pool proj_bias proj_type output_tokens act_kwargs
        norm_kwargs block_type qk_norm scaled_cosine_attn scale_heads scale_attn_inner scale_attn
        scale_fc hf_tokenizer_name tokenizer_mode tokenizer_kwargs hf_model_name hf_model_pretrained
        hf_proj_type hf_pooler_type
    """,
    "model_cfg.text_cfg.tokenizer_kwargs": """
        clean strip_sep_token language reduction_mask additional_special_tokens
    """,
    "preprocess_cfg": "size mode mean std interpolation resize_mode fill_color",
}
# Names with a colon (`hf-hub:`, `local-dir:`) read other configurations.
_TIMM_NAME = re.compile(r"\w[\w.]*")


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object (a mapping).

    Raises:
        SettingsError: it cannot be read, or holds something else; one line with the path.
    """
    try:
        content = read_json(path)
    except ValueError as error:
        raise SettingsError(str(error)) from None
    if not isinstance(content, dict):
        raise SettingsError(f"{path}: expected an object, got {shown(content)}")
    return content


def read_config(path: Path) -> dict[str, Any]:
    """Read an open_clip_config.json; raises an error for keys that are not known to be safe.

    Raises:
        SettingsError: it cannot be read, or holds such a key; names the file and the key.
    """
    config = read_object(path)
    for part, names in _KEYS.items():
        known = names.split()
        values: Any = config
        for name in part.split("."):
            values = values.get(name) or {}
            if not isinstance(values, Mapping):
                raise SettingsError(f"{path}: {part}: expected a mapping, got {values!r}")
        for key in values:
            if key not in known:
                raise SettingsError(
                    f"{path}: {part}.{key} is not known to be safe{nearest(key, known)} "
                    f"(known: {', '.join(known)})"
                )
    _check_names(config.get("model_cfg", {}), path)
    return config


def refuse_code(folder: Path, what: str) -> None:
    """Raise an error if a folder for transformers or diffusers asks to run its own Python files.

    Args:
        folder: of a model, a tokenizer or a pipeline.
        what: the YAML key or the model, for the error.

    Raises:
        SettingsError: names the file and the key.
    """
    for path in sorted((*folder.glob("*config.json"), *folder.glob("*/*config.json"))):
        for key, _ in leaves(read_object(path)):
            if asked := _CODE & set(key.split(".")):
                raise SettingsError(
                    f"{what}: {path}: {min(asked)} asks for code of its own, which is not run; "
                    "remove the key if the library has the model's class, or choose another model"
                )


def _check_names(model_cfg: Mapping[str, Any], path: Path) -> None:
    """Raise an error for towers that are no known models of timm and transformers."""
    name = (model_cfg.get("vision_cfg") or {}).get("timm_model_name")
    if name is not None and not _TIMM_NAME.fullmatch(str(name)):
        raise SettingsError(
            f"{path}: model_cfg.vision_cfg.timm_model_name: expected the plain name of a model of "
            f"timm, got {name!r}"
        )
    name = (model_cfg.get("text_cfg") or {}).get("hf_model_name")
    if name is not None and name not in (known := _text_towers()):
        raise SettingsError(
            f"{path}: model_cfg.text_cfg.hf_model_name: expected one of {', '.join(known)} (those "
            f"of open_clip's architectures), got {name!r}"
        )


def _text_towers() -> list[str]:
    """Names of the transformers text towers that open_clip's own architectures use."""
    import open_clip

    texts = (open_clip.get_model_config(name)["text_cfg"] for name in open_clip.list_models())
    return sorted({text["hf_model_name"] for text in texts if text.get("hf_model_name")})
