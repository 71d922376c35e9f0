"""Settings of the base model and of exports; importable without torch."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from pydantic import PositiveInt

from compo_pipeline.configuration import settings
from compo_pipeline.plugins import Registry

BASES: Registry[Callable[[], Path]] = Registry("compo_pipeline.base_models", {})
"""Base models that ship with an installed package: functions that return a folder as `export`
writes it, by model.name."""
SHIPPED = "scenes-base"
LOCAL_PREFIX = "local-dir:"
HUB_PREFIX = "hf-hub:"
REGISTRY_PREFIX = "models:/"

PublishedLayout = Literal[
    "negclip", "ce_clip", "tsvlc", "dac", "fsc_clip", "con_clip", "clove", "triplet_clip"
]


@settings
class ModelSettings:
    """The base model."""

    name: str = SHIPPED
    """A shipped model (`scenes-base`), an open_clip architecture such as
    `ViT-B-32-quickgelu`, `local-dir:<folder>` or `hf-hub:<owner/model>` (of open_clip or
    transformers), or in a list of models a registered version: `models:/<name>@<alias>` or
    `models:/<name>/<version>`.
    """

    pretrained: str | None = None
    """Weights for an open_clip architecture: one of its tags (downloaded), a file, a folder written
    by `export`, or null for random weights. The other kinds of name have their own weights.
    """

    tokenizer: str | None = None
    """Folder of a Hugging Face tokenizer, or its tokenizer.json; null takes the model's own."""

    quick_gelu: bool | None = None
    """Whether a weights file that does not record it was trained with QuickGELU."""

    layout: PublishedLayout | None = None
    """Whose published checkpoint the weights file is, for what it does not say about itself
    (QuickGELU, context length, mixture); docs/models.md lists them.
    """

    mixed_with: str | None = None
    """Weights (a tag or a file) that the layout clove mixes the file with; null takes OpenAI's."""

    context_length: PositiveInt | None = None
    """Token ids of a text, if they are not the architecture's; null takes those."""

    seed: int = 0
    """Of random weights."""


@settings
class ExportSettings:
    """Formats of other programs that a checkpoint is written in."""

    hugging_face: bool = True
    """A folder for Hugging Face transformers."""

    onnx: bool = True
    """Two ONNX files, one for each tower."""

    def __post_init__(self) -> None:
        """Refuse an export of nothing."""
        if not (self.hugging_face or self.onnx):
            raise ValueError("no format is asked for; set export.hugging_face or export.onnx")


def is_file(pretrained: str) -> bool:
    """Whether `model.pretrained` names a file or folder, not a tag of open_clip."""
    return Path(pretrained).exists() or "/" in pretrained or Path(pretrained).suffix != ""


def needs_network(model: ModelSettings) -> bool:
    """Whether the model, or a part of it, may have to be downloaded."""
    if model.name.startswith(HUB_PREFIX):
        return True
    if model.name in BASES or model.name.startswith((LOCAL_PREFIX, REGISTRY_PREFIX)):
        return False
    if model.layout == "clove" and (model.mixed_with is None or not is_file(model.mixed_with)):
        return True
    if model.pretrained is not None and not is_file(model.pretrained):
        return True
    return model.tokenizer is None and _takes_hub_tokenizer(model.name)


def _takes_hub_tokenizer(architecture: str) -> bool:
    """Whether the tokenizer of an architecture of open_clip is on a hub.

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
