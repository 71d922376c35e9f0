"""What makes two models the same: hashes of weights, preprocessing and tokenizer.

A folder written by `export` keeps this identity beside its weights, because the worst mistakes
(weights trained with QuickGELU run under GELU, another tokenizer, another preprocessing) change
every number without an error.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

CONFIG_FILE = "open_clip_config.json"
WEIGHTS_FILE = "open_clip_model.safetensors"
RECORD_FILE = "compo.json"

# Case, contractions, digits, emoji, other scripts and a text beyond the context length: two
# tokenizers that agree on these differ in nothing that a caption holds.
PROBES = (
    "A red cube isn't left of the two small BLUE spheres.",
    "3.5% of café-goers photographed a 🐶, 猫 & собака!",
    "one small thing after another " * 40,
)


def tensors_sha256(named: Iterable[tuple[str, torch.Tensor]], config: Mapping[str, Any]) -> str:
    """Digest of named tensors and the configuration under which they mean something.

    Floating tensors are hashed as float32, so the precision of the file plays no part.
    """
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
    for name, tensor in sorted(named):
        plain = tensor.detach().cpu()
        if plain.is_floating_point():
            plain = plain.float()
        digest.update(f"\0{name}\0{tuple(plain.shape)}\0".encode())
        digest.update(plain.contiguous().numpy().tobytes())
    return digest.hexdigest()


def fingerprint(state: Mapping[str, torch.Tensor], config: Mapping[str, Any]) -> str:
    """Identity of the whole model: all weights, architecture and preprocessing."""
    return tensors_sha256(state.items(), config)


def image_fingerprint(state: Mapping[str, torch.Tensor], config: Mapping[str, Any]) -> str:
    """Identity of the image tower: equal where image embeddings are equal.

    Fine-tuning the text tower alone leaves it as it was, so embeddings kept under it hold good.
    """
    architecture = config["model_cfg"]
    part = {
        "embed_dim": architecture["embed_dim"],
        "quick_gelu": architecture.get("quick_gelu", False),
        "vision_cfg": architecture["vision_cfg"],
        "preprocess_cfg": config["preprocess_cfg"],
    }
    tower = ((name, tensor) for name, tensor in state.items() if name.startswith("visual."))
    return tensors_sha256(tower, part)


def tokenizer_fingerprint(tokenize: Callable[[list[str]], torch.Tensor]) -> str:
    """Digest of the token ids of a few awkward texts."""
    return hashlib.sha256(tokenize(list(PROBES)).to(torch.int64).numpy().tobytes()).hexdigest()


def read_record(folder: Path) -> dict[str, Any]:
    """What `export` noted in a folder (compo.json); empty for a folder of other origin."""
    path = folder / RECORD_FILE
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
