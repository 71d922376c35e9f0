"""What the YAML key `model` may say: which base model a run starts from."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

SCENES_BASE = "scenes-base"
LOCAL_PREFIX = "local-dir:"
HUB_PREFIX = "hf-hub:"


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """The base model.

    Attributes:
        name: `scenes-base` (ships with the package), an open_clip architecture such as
            `ViT-B-32-quickgelu`, `local-dir:<folder>` or `hf-hub:<owner/model>`.
        pretrained: weights for an open_clip architecture: one of its tags (downloaded), a file, a
            folder written by `export`, or null for random weights. The other kinds of name bring
            their own weights.
        tokenizer: folder of a Hugging Face tokenizer, or its tokenizer.json; null takes the
            model's own.
        quick_gelu: whether a weights file that does not say so was trained with QuickGELU.
        seed: draws random weights.
    """

    name: str = SCENES_BASE
    pretrained: str | None = None
    tokenizer: str | None = None
    quick_gelu: bool | None = None
    seed: int = 0


def is_file(pretrained: str) -> bool:
    """Whether `model.pretrained` names a file or folder, not a tag of open_clip."""
    return Path(pretrained).exists() or "/" in pretrained or Path(pretrained).suffix != ""


def needs_network(settings: ModelSettings) -> bool:
    """Whether the model, or a part of it, may have to be downloaded."""
    if settings.name.startswith(HUB_PREFIX):
        return True
    if settings.name == SCENES_BASE or settings.name.startswith(LOCAL_PREFIX):
        return False
    if settings.pretrained is not None and not is_file(settings.pretrained):
        return True
    return settings.tokenizer is None and _takes_hub_tokenizer(settings.name)


def _takes_hub_tokenizer(architecture: str) -> bool:
    """Whether the tokenizer of an architecture of open_clip lies on a hub.

    Its configuration is read without open_clip, whose import takes seconds and fixes whether the
    hub may be asked.
    """
    package = find_spec("open_clip")
    if package is None or package.origin is None:
        return False
    config = Path(package.origin).parent / "model_configs" / f"{architecture}.json"
    if not config.is_file():
        return False
    text_cfg = json.loads(config.read_text(encoding="utf-8")).get("text_cfg", {})
    return bool(text_cfg.get("hf_tokenizer_name"))
