"""Published checkpoints: what their files leave out, and their tensors by open_clip's names.

A file of open_clip's or OpenAI's training code holds its tensors under a key, with a prefix of
the wrapper that trained them, and LoRA's factors beside the weights that they change. Nothing of
these programs is run.

Shapes: r rank of LoRA, k side of a convolution's kernel.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy._core.multiarray import scalar
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from compo_pipeline.core.settings import SettingsError
from compo_pipeline.core.untrusted import check_weights_archive, shown
from compo_pipeline.models import hf_import
from compo_pipeline.models.settings import PublishedLayout


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


# All start from OpenAI's weights, so from QuickGELU. Not known: under which activation NegCLIP's
# and CE-CLIP's own figures were computed; their code builds ViT-B-32, which is GELU for a file.
LAYOUTS: dict[PublishedLayout, Layout] = {
    # {"epoch", "state_dict": {"module.<name>"}, "optimizer"}: what open_clip's training saves.
    "negclip": Layout(),  # github.com/mertyg/vision-language-models-are-bows
    "ce_clip": Layout(),  # github.com/lezhang7/Enhance-FineGrained
    # The same, with LoRA of rank 4 and alpha 1 that is not merged (see `_merge_lora`).
    "tsvlc": Layout(),  # github.com/SivanDoveh/TSVLC
    "dac": Layout(),  # github.com/SivanDoveh/DAC
    # With and without LoRA.
    "fsc_clip": Layout(),  # huggingface.co/ytaek-oh/fsc-clip
    # {"model", ...}: OpenAI's names, which are open_clip's.
    "con_clip": Layout(),  # github.com/jaisidhsingh/CoN-CLIP
    # `clove_without_patching.pt`: its README mixes it at 0.6 with OpenAI's weights. It is
    # reported to hold 64 positions; with 77, the first 64 give the same embeddings.
    "clove": Layout(context_length=64, base="openai", share=0.6),  # github.com/Netflix/clove
    # {"model_state_dict"} of open_clip, or the folders `vision-encoder` and `text-encoder` of
    # transformers (which need no layout). Of 77 positions, its evaluation uses 64.
    "triplet_clip": Layout(context_length=64),  # huggingface.co/TripletCLIP
}
"""Published checkpoints by `--layout` of `compo-pipeline import-model`. CS-CLIP's and CLIC's need
none: they are open_clip folders (`hf-hub:`)."""
UNKNOWN = Layout(quick_gelu=None)
"""Layout of a file of which nothing is known."""

# What a pickled checkpoint may hold beside tensors and plain values: settings and figures of its
# training, which are not used.
_ALLOWED: dict[str, Any] = {
    "argparse.Namespace": argparse.Namespace,
    "numpy.dtype": np.dtype,
    "numpy.dtypes.Float64DType": np.dtypes.Float64DType,
    "numpy.dtypes.Int64DType": np.dtypes.Int64DType,
    # Before and since numpy 2.
    "numpy.core.multiarray.scalar": scalar,
    "numpy._core.multiarray.scalar": scalar,
}
_CONTAINERS = ("state_dict", "model_state_dict", "model")
_WRAPPERS = re.compile(r"^(?:module\.|_orig_mod\.|model\.)+")
_FACTOR = re.compile(r"(?P<layer>.+?)(?P<weight>\.lora|_lora)_A")


def read(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a published checkpoint, renamed to open_clip's names.

    Args:
        path: a safetensors file, a pickled checkpoint, or a folder with a folder for each tower.

    Raises:
        SettingsError: it cannot be read, holds something else, or LoRA's factors do not fit the
            weights.
    """
    if path.is_dir():
        return {
            name: each
            for part in hf_import.tower_weights_files(path)
            for name, each in read(part).items()
        }
    state = _read_safetensors(path) if path.suffix == ".safetensors" else _read_pickle(path)
    plain = {_WRAPPERS.sub("", name): tensor for name, tensor in state.items()}
    if any("vision_model." in name or "text_model." in name for name in plain):
        return hf_import.to_open_clip_names(plain)
    return _merge_lora(plain, path)


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    """Tensors of a safetensors file."""
    try:
        return load_file(path)
    except SafetensorError as error:
        raise SettingsError(f"{path} is not a readable safetensors file: {error}") from None


def _read_pickle(path: Path) -> dict[str, Tensor]:
    """Tensors of a pickled checkpoint, renamed for open_clip.

    No code of the pickle is run.

    Raises:
        SettingsError: it holds other classes than tensors, plain values and a few that are
            allowed; names them. Or it has no tensors in a known place.
    """
    try:
        check_weights_archive(path)
    except ValueError as error:
        raise SettingsError(f"{error}; get the file again") from error
    try:
        allowed: list[Any] = [(kind, name) for name, kind in _ALLOWED.items()]
        with torch.serialization.safe_globals(allowed):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise SettingsError(
            f"{path} is not a plain state dict ({_disallowed(path) or type(error).__name__}), and "
            "nothing else is unpickled here; use the model's safetensors file (OpenAI's weights: "
            "the timm/*_clip_*.openai models of the Hugging Face hub)"
        ) from error
    known = content if isinstance(content, Mapping) else {}
    state = next((known[key] for key in _CONTAINERS if isinstance(known.get(key), Mapping)), known)
    if not state or not all(isinstance(value, Tensor) for value in state.values()):
        raise SettingsError(
            f"{path}: expected tensors by name, there or under {', '.join(_CONTAINERS)}, got "
            f"{shown(list(known) or type(content).__name__)}"
        )
    return dict(state)


def _disallowed(path: Path) -> str:
    """Text that names the disallowed classes in a pickled checkpoint, empty if unknown."""
    try:
        found = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except (RuntimeError, ValueError, OSError):  # a TorchScript archive, or no checkpoint
        return ""
    classes = sorted(set(found) - set(_ALLOWED))
    return f"it holds {', '.join(classes[:5])}" if classes else ""


def _merge_lora(state: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    """State dict with LoRA factors merged into their weights, W + B A alpha / r with alpha = 1.

    That is loralib's form.

    `<layer>.lora_A` [r, in] and `<layer>.lora_B` [out, r] belong to `<layer>.weight` [out, in];
    of a convolution, A is [r k, in k], B [out k, r k] and B A has the weight's shape otherwise
    ordered. `<layer>.in_proj_weight_lora_A` and `_B` belong to attention's fused input
    `<layer>.in_proj_weight` [3 W, W]. TSVLC, DAC and FSC-CLIP have alpha = 1; no file says so.
    """
    merged = dict(state)
    for name in state:
        match = _FACTOR.fullmatch(name)
        if match is None:
            continue
        fused = match["weight"] == "_lora"
        key = match["layer"] if fused else f"{match['layer']}.weight"
        a, b = merged.pop(name), merged.pop(f"{name[:-1]}B", None)
        weight = state.get(key)
        if weight is None or b is None or a.ndim != 2 or b.ndim != 2:
            raise SettingsError(f"{path}: {name} has no factor B or no weight that it changes")
        rank = a.shape[0] // (weight.shape[-1] if weight.ndim == 4 else 1)
        if a.shape[0] != b.shape[1] or len(a) == 0 or b.shape[0] * a.shape[1] != weight.numel():
            raise SettingsError(
                f"{path}: {name} is {list(a.shape)} and its B {list(b.shape)}, which do not make "
                f"an update of {key} {list(weight.shape)}"
            )
        update = b.float() @ a.float() / rank
        merged[key] = weight.float() + update.view(weight.shape)
    return merged
