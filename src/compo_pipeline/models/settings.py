"""Settings of the base model and of exports.

Importing this module loads no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from compo_pipeline.core.plugins import Registry
from compo_pipeline.core.settings import settings

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
    """Settings of the base model: its name, pretrained weights and context length."""

    name: str = SHIPPED
    """Name of the model: a shipped model (`scenes-base`), an open_clip architecture such as
    `ViT-B-32-quickgelu`, or `local-dir:<folder>` or `hf-hub:<owner/model>` of open_clip. In a list
    of models, also a registered version: `models:/<name>@<alias>` or `models:/<name>/<version>`.
    `compo-pipeline import-model` converts other models."""

    pretrained: str | None = None
    """Weights for an open_clip architecture: one of its tags (downloaded), a folder written by
    `export`, its file, or null for random weights. Other kinds of name have their own weights."""

    context_length: Literal[248] | None = None
    """248 stretches the 77 positions of a text tower as Long-CLIP does, to read longer captions.
    Null leaves them as they are (docs/how-to/long-captions.md)."""

    def __post_init__(self) -> None:
        """Check that a registered version has no settings of its own."""
        if self.context_length is not None and self.name.startswith(REGISTRY_PREFIX):
            raise ValueError(
                f"context_length: '{self.name}' is a registered version, which is not stretched; "
                "expected null"
            )


def is_file(pretrained: str) -> bool:
    """Whether `model.pretrained` names a file or folder, not a pretrained tag of open_clip."""
    return Path(pretrained).exists() or "/" in pretrained or Path(pretrained).suffix != ""


def needs_network(model: ModelSettings) -> bool:
    """Whether a model, its weights or its tokenizer may have to be downloaded."""
    own = model.name in BASES or model.name.startswith((LOCAL_PREFIX, REGISTRY_PREFIX))
    return not own
