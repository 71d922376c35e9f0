"""Writing a model as a folder that open_clip loads by itself (`local-dir:<folder>`)."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch

from compo_pipeline.core.files import atomic_folder, write_json
from compo_pipeline.core.hashing import file_hash, tensors_hash
from compo_pipeline.models import weights
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.models.weights import (
    CONFIG_FILE,
    RECORD_FILE,
    WEIGHTS_FILE,
    image_fingerprint,
    tokenizer_fingerprint,
)

Precision = Literal["fp32", "fp16"]


def export(
    loaded: LoadedModel,
    folder: Path,
    *,
    precision: Precision = "fp32",
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """Write a model as a folder for open_clip, atomically.

    An existing folder is replaced.

    Arguments and errors are those of `write`.
    """
    with atomic_folder(folder) as new:
        write(loaded, new, precision=precision, metadata=metadata)
    return folder


def write(
    loaded: LoadedModel,
    folder: Path,
    *,
    precision: Precision = "fp32",
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Write configuration, weights, tokenizer and record of a model into a folder.

    Args:
        loaded: the model; its weights may have changed since it was loaded.
        folder: an empty one.
        precision: precision of the weights file. open_clip loads either as float32.
        metadata: further fields of the record (compo.json): method, base fingerprint, commit. The
            fingerprints are always those of the written model.

    Raises:
        ValueError: a weight is not finite, or too large for fp16.
    """
    state = _weights_in_precision(loaded.model, precision)
    # The header travels with the file where someone copies the weights alone.
    header = {"format": "pt", "quick_gelu": str(loaded.quick_gelu).lower(), "name": loaded.name}
    record = {
        **(metadata or {}),
        "precision": precision,
        "name": loaded.name,
        "quick_gelu": loaded.quick_gelu,
        "fingerprint": tensors_hash(state, loaded.config),
        "image_fingerprint": image_fingerprint(state, loaded.config),
        "tokenizer_fingerprint": tokenizer_fingerprint(loaded.tokenize),
        "open_clip": version("open_clip_torch"),
    }
    weights.write(state, folder / WEIGHTS_FILE, header)
    if hasattr(loaded.tokenize, "save_pretrained"):
        loaded.tokenize.save_pretrained(str(folder))
    write_json(folder / CONFIG_FILE, loaded.config)
    record["config_sha256"] = file_hash(folder / CONFIG_FILE)
    write_json(folder / RECORD_FILE, record)


def _weights_in_precision(model: torch.nn.Module, precision: Precision) -> dict[str, torch.Tensor]:
    """State dict on the CPU in a precision.

    Raises an error if a weight is not finite in it.
    """
    kind = {"fp32": torch.float32, "fp16": torch.float16}[precision]
    state = {}
    for name, tensor in model.state_dict().items():
        plain = tensor.detach().cpu()
        if plain.is_floating_point():
            plain = plain.to(kind)
            if not torch.isfinite(plain).all():
                raise ValueError(
                    f"the weight {name} is not finite in {precision}; nothing was written"
                )
        # A copy: safetensors refuses tensors that share memory.
        state[name] = plain.clone(memory_format=torch.contiguous_format)
    return state
