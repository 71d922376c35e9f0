"""Allowed keys of the configuration files in model folders from untrusted sources.

Libraries run code that a folder brings, or fetch and read other models, where its configuration
asks for it. So keys are refused that are not known to describe a network.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from dataclasses import fields
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any

from compo_pipeline.core.settings import SettingsError, leaves, nearest, pip_install
from compo_pipeline.core.untrusted import read_json, shown

# Keys with which transformers and diffusers run a folder's own Python files.
_CODE = frozenset({"auto_map", "trust_remote_code", "custom_generate"})
# Of a tokenizer's arguments, those that name no code and no file.
_TOKENIZER_KEYS = frozenset(
    ("clean", "strip_sep_token", "language", "reduction_mask", "additional_special_tokens")
)
BERT_KEYS = frozenset(
    (
        *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
        *("num_attention_heads", "max_position_embeddings", "type_vocab_size", "pad_token_id"),
        *("hidden_act", "layer_norm_eps", "hidden_dropout_prob", "attention_probs_dropout_prob"),
    )
)
"""Keys of a BERT's configuration in `text_cfg.hf_model_config`, which open_clip has no place for:
it reads a text tower's configuration from the hub."""
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
    """Read an open_clip_config.json.

    Raises an error for keys that are not known to be safe.

    Raises:
        SettingsError: it cannot be read, or holds such a key; names the file and the key.
    """
    config = read_object(path)
    check_config(config, path)
    return config


def check_config(config: Mapping[str, Any], place: object) -> None:
    """Raise an error for keys or towers of open_clip's configuration that are not known to be safe.

    Args:
        config: `model_cfg`, `preprocess_cfg` or both, or parts of them.
        place: file or YAML key of the configuration, for the error.

    Raises:
        SettingsError: names the place and the key.
    """
    for part, known in _known_keys().items():
        values: Any = config
        for name in part.split("."):
            values = values.get(name) or {}
            if not isinstance(values, Mapping):
                raise SettingsError(f"{place}: {part}: expected a mapping, got {values!r}")
        for key in values:
            if key not in known:
                raise SettingsError(
                    f"{place}: {part}.{key} is not known to be safe{nearest(key, known)} "
                    f"(known: {', '.join(sorted(known))})"
                )
    _check_names(config.get("model_cfg", {}), place)


def _known_keys() -> dict[str, Set[str]]:
    """The keys that open_clip's classes know, by part of an open_clip_config.json."""
    from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg
    from open_clip.transform import PreprocessCfg

    whole = signature(CLIP).parameters.keys() - {"cast_dtype", "output_dict"}
    kinds: tuple[Any, ...] = (CLIPVisionCfg, CLIPTextCfg, PreprocessCfg)
    vision, text, preprocess = ({field.name for field in fields(kind)} for kind in kinds)
    return {
        "model_cfg": whole | {"custom_text", "multimodal_cfg"},
        "model_cfg.vision_cfg": vision,
        "model_cfg.text_cfg": text | {"hf_model_config"},
        "model_cfg.text_cfg.hf_model_config": BERT_KEYS,
        "model_cfg.text_cfg.tokenizer_kwargs": _TOKENIZER_KEYS,
        "preprocess_cfg": preprocess,
    }


def refuse_code(folder: Path, what: str) -> None:
    """Raise an error if a folder for transformers or diffusers asks to run its own Python files.

    Args:
        folder: folder of a model, a tokenizer or a pipeline.
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


def require_transformers() -> None:
    """Raise an error if transformers, which is optional, is not installed."""
    if find_spec("transformers") is None:
        raise SettingsError(f"not installed: transformers: {pip_install('siglip')}")


def load_transformers(
    folder: Path, key: str, what: str, class_name: str, dtype: str = "auto"
) -> tuple[Any, Any, set[str]]:
    """Model and processor in a folder of transformers, and names of weights that the folder lacks.

    No code of the folder runs, no pickle is read, and nothing is downloaded.

    Args:
        folder: folder with config, weights (safetensors) and processor.
        key: YAML key of the folder, for the error.
        what: the model in words, for the error.
        class_name: class of transformers.
        dtype: type of the weights; `auto` is as in the folder.

    Raises:
        SettingsError: it holds no such model, or transformers is not installed.
    """
    refuse_code(folder, key)
    processor = from_pretrained("AutoProcessor", folder, key, what)
    weights = {"use_safetensors": True, "dtype": dtype, "output_loading_info": True}
    network, loaded = from_pretrained(class_name, folder, key, what, **weights)
    return network.eval(), processor, set(loaded["missing_keys"])


def from_pretrained(class_name: str, place: Path | str, key: str, what: str, **options: Any) -> Any:
    """What a class of transformers loads, without the network and without foreign code.

    Args:
        class_name: class of transformers.
        place: a folder, or a name in the local cache of the hub.
        key: YAML key of the place, for the error.
        what: the model in words, for the error.
        options: further options of `from_pretrained`.

    Raises:
        SettingsError: there is no such model, or transformers is not installed.
    """
    require_transformers()
    import transformers
    from safetensors import SafetensorError

    transformers.utils.logging.disable_progress_bar()
    safe = {"local_files_only": True, "trust_remote_code": False}
    wrong = OSError, ValueError, KeyError, TypeError, RuntimeError, ImportError, SafetensorError
    try:
        return getattr(transformers, class_name).from_pretrained(place, **safe, **options)
    except wrong as error:
        reason = " ".join(str(error).split())
        raise SettingsError(f"{key}: cannot load {what} from '{place}' ({reason})") from error


def _check_names(model_cfg: Mapping[str, Any], place: object) -> None:
    """Raise an error for towers that are not known models of timm and transformers."""
    name = (model_cfg.get("vision_cfg") or {}).get("timm_model_name")
    if name is not None and not _TIMM_NAME.fullmatch(str(name)):
        raise SettingsError(
            f"{place}: model_cfg.vision_cfg.timm_model_name: expected the plain name of a model of "
            f"timm, got {name!r}"
        )
    name = (model_cfg.get("text_cfg") or {}).get("hf_model_name")
    if name is not None and name not in (known := _text_towers()):
        raise SettingsError(
            f"{place}: model_cfg.text_cfg.hf_model_name: expected one of {', '.join(known)} (those "
            f"of open_clip's architectures), got {name!r}"
        )


def _text_towers() -> list[str]:
    """Names of the transformers text towers that open_clip's own architectures use."""
    import open_clip

    texts = (open_clip.get_model_config(name)["text_cfg"] for name in open_clip.list_models())
    return sorted({text["hf_model_name"] for text in texts if text.get("hf_model_name")})
