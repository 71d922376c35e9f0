"""Settings of the base model, and what is known of published checkpoints.

Importing this module loads no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from compo_pipeline.core.plugins import Registry
from compo_pipeline.core.settings import settings

BASES: Registry[Callable[[], Path]] = Registry("compo_pipeline.base_models", {})
"""Base models that ship with an installed package: functions that return a folder as `export`
writes it, by model.name."""
SHIPPED = "scenes-base"
LOCAL_PREFIX = "local-dir:"
HUB_PREFIX = "hf-hub:"
REGISTRY_PREFIX = "models:/"


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

    config: Mapping[str, Any] = field(default_factory=dict)
    """Changes to open_clip's configuration of the model, nested as its `vision_cfg` and `text_cfg`,
    for weights whose own configuration is incomplete (variant `clips_l14`)."""

    def __post_init__(self) -> None:
        """Check that a registered version has no settings of its own."""
        if self.name.startswith(REGISTRY_PREFIX):
            for key in ("context_length", "config"):
                if getattr(self, key):
                    raise ValueError(
                        f"{key}: '{self.name}' is a registered version, which is used as it is; "
                        "leave the key out"
                    )


def is_file(pretrained: str) -> bool:
    """Whether `model.pretrained` names a file or folder, not a pretrained tag of open_clip."""
    return Path(pretrained).exists() or "/" in pretrained or Path(pretrained).suffix != ""


def needs_network(model: ModelSettings) -> bool:
    """Whether a model, its weights or its tokenizer may have to be downloaded."""
    return not (model.name in BASES or model.name.startswith((LOCAL_PREFIX, REGISTRY_PREFIX)))


@dataclass(frozen=True, slots=True)
class Layout:
    """Facts that a published checkpoint's file does not record, such as its activation.

    Attributes:
        quick_gelu: the activation that it was trained with, None if unknown.
        context_length: token ids of a text; positions beyond are cut off. None is the
            architecture's.
        base: tag of the weights that it is mixed with; None for no mixture.
        share: share of the file in the mixture.
    """

    quick_gelu: bool | None = True
    context_length: int | None = None
    base: str | None = None
    share: float = 1.0


# All start from OpenAI's weights, so from QuickGELU. Not known: under which activation NegCLIP's,
# CE-CLIP's and MACCO's own figures were computed; their code builds ViT-B-32, which is GELU for a
# file.
LAYOUTS: dict[str, Layout] = {
    # {"epoch", "state_dict": {"module.<name>"}, "optimizer"}: what open_clip's training saves.
    "negclip": Layout(),  # github.com/mertyg/vision-language-models-are-bows
    "ce_clip": Layout(),  # github.com/lezhang7/Enhance-FineGrained
    "degla": Layout(),  # github.com/xiaoxing2001/DeGLA
    # The same of one process: without "module.".
    "macco": Layout(),  # github.com/hiker-lw/MACCO
    # The same, with LoRA of rank 4 and alpha 1 that is not merged (see `weights.read`).
    "tsvlc": Layout(),  # github.com/SivanDoveh/TSVLC
    "dac": Layout(),  # github.com/SivanDoveh/DAC
    # With and without LoRA.
    "fsc_clip": Layout(),  # huggingface.co/ytaek-oh/fsc-clip
    # {"model", ...}: OpenAI's names, which are open_clip's.
    "con_clip": Layout(),  # github.com/jaisidhsingh/CoN-CLIP
    # The same with LoRA of rank 16 and alpha 1, and a logit_bias.
    "sparcl": Layout(),  # github.com/lihaoxin05/SPARCL
    # {"epoch", "model_state_dict", "optimizer_state_dict", "loss"}: OpenAI's names, half precision.
    "gnm_clip": Layout(),  # huggingface.co/ugursahin/generative-negative-mining-clip
    # `clove_without_patching.pt`: its README mixes it at 0.6 with OpenAI's weights. It is
    # reported to hold 64 positions; with 77, the first 64 give the same embeddings.
    "clove": Layout(context_length=64, base="openai", share=0.6),  # github.com/Netflix/clove
    # {"model_state_dict"} of open_clip, or the folders `vision-encoder` and `text-encoder` of
    # transformers (which need no layout). Of 77 positions, its evaluation uses 64.
    "triplet_clip": Layout(context_length=64),  # huggingface.co/TripletCLIP
}
"""Published checkpoints by `--layout` of `compo-pipeline import-model`. CS-CLIP's, CLIC's and
READ-CLIP's need none: they are folders of open_clip and of transformers (`hf-hub:`)."""
UNKNOWN = Layout(quick_gelu=None)
"""Layout of a file of which nothing is known."""
