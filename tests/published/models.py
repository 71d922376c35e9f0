"""Small bases that learn at the rates of the papers' recipes, in the few steps of a test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import open_clip
import torch
from safetensors.torch import save_file
from tests.published.world import COLOURS, THINGS

CLIP: dict[str, Any] = {
    "embed_dim": 32,
    "vision_cfg": {"image_size": 32, "layers": 2, "width": 64, "head_width": 32, "patch_size": 16},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 1},
}
_PROJECTION = 3e-6
"""Size of the weights that end a tower. Embeddings are normalised, so it changes none of them; but
a step of 1e-6 turns such weights, while those of a size of 1 stay where they are."""


def clip() -> open_clip.CLIP:
    """A CLIP with random weights that tells colours and their names apart, not which is which.

    Attention is even. Words of the captions weigh more than others.
    """
    tokens = open_clip.get_tokenizer("ViT-B-32")([" ".join((*COLOURS, *THINGS))])
    words = tokens[0, 1 : 1 + len(COLOURS) + len(THINGS)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = open_clip.CLIP(**CLIP)
    with torch.no_grad():
        _quieten(model.token_embedding.weight, words.tolist())
        model.positional_embedding.zero_()
        model.visual.class_embedding.zero_()
        model.visual.positional_embedding.zero_()
        for block in (*model.transformer.resblocks, *model.visual.transformer.resblocks):
            block.attn.in_proj_weight[: 2 * 64].zero_()
            block.attn.out_proj.weight.mul_(10)
        seen = model.visual.transformer.resblocks[0].mlp
        seen.c_fc.weight.mul_(5)
        seen.c_proj.weight.mul_(20)
        for projection in (model.text_projection, model.visual.proj):
            projection.mul_(_PROJECTION / projection.std())
    return model


def write_clip(folder: Path) -> Path:
    """The folder of that model."""
    half = [0.5, 0.5, 0.5]
    preprocess = {"size": [32, 32], "mean": half, "std": half, "resize_mode": "squash"}
    folder.mkdir()
    return _write(folder, clip(), {"model_cfg": CLIP, "preprocess_cfg": preprocess})


def _quieten(embedding: torch.Tensor, words: list[int]) -> None:
    """Let other tokens than some hardly count: layer norms divide by no less than their epsilon."""
    kept = embedding[words].clone()
    embedding.mul_(1e-4)
    embedding[words] = kept


def _write(folder: Path, model: torch.nn.Module, config: dict[str, Any]) -> Path:
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(tensors, folder / "open_clip_model.safetensors")
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    return folder
