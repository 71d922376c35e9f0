"""Small bases that learn at the rates of the papers' recipes, in the few steps of a test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import open_clip
import torch
from safetensors.torch import save_file
from tests.published.world import COLOURS, THINGS

_OTHERS = ("next", "to", "there", "is", "behind", "the")
CLIP: dict[str, Any] = {
    "embed_dim": 32,
    "vision_cfg": {"image_size": 32, "layers": 2, "width": 64, "head_width": 32, "patch_size": 16},
    "text_cfg": {"context_length": 40, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 1},
}
SIGLIP: dict[str, Any] = {
    "embed_dim": 32,
    "init_logit_bias": -10,
    "custom_text": True,
    "vision_cfg": CLIP["vision_cfg"],
    "text_cfg": {
        "context_length": 24,
        "vocab_size": 64,
        "hf_tokenizer_name": "timm/ViT-B-16-SigLIP",
        "tokenizer_kwargs": {"clean": "canonicalize"},
        "width": 64,
        "heads": 2,
        "layers": 1,
        "no_causal_mask": True,
        "proj_bias": True,
        "pool_type": "last",
    },
}
SPECIAL = 3  # pieces of the tokenizer that are no words
WORDS = (*COLOURS, *THINGS)
PIECES = [f"▁{word}" for word in ("", "a", *WORDS, *_OTHERS)]
"""Of the tokenizer of the small SigLIP."""


def clip() -> open_clip.CLIP:
    """A CLIP with random weights that tells colours and their names apart, not which is which.

    Attention is even. Words of the captions weigh more than others. The weights that end a tower
    are of the size of a few steps at CLIC's rate: embeddings are normalised, so the size changes
    none of them, and weights of a size of 1 would stay where they are.
    """
    tokens = open_clip.get_tokenizer("ViT-B-32")([" ".join(WORDS)])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = open_clip.CLIP(**CLIP)
    with torch.no_grad():
        _temper(model.visual, model, tokens[0, 1 : 1 + len(WORDS)].tolist())
        for projection in (model.text_projection, model.visual.proj):
            projection.mul_(3e-6 / projection.std())
    return model


def siglip() -> open_clip.CustomTextCLIP:
    """The same as a SigLIP, whose texts have no causal mask and are seen by their last place."""
    config = {name: value for name, value in SIGLIP.items() if name != "custom_text"}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = open_clip.CustomTextCLIP(**config)
    with torch.no_grad():
        _temper(model.visual, model.text, [SPECIAL + PIECES.index(f"▁{word}") for word in WORDS])
        model.text.text_projection.bias.zero_()
        for projection in (model.text.text_projection.weight, model.visual.proj):
            projection.mul_(1e-5 / projection.std())
    return model


def write_clip(folder: Path) -> Path:
    """The folder of that CLIP."""
    return _write(folder, clip(), CLIP)


def write_siglip(folder: Path) -> Path:
    """The folder of that SigLIP, without a tokenizer."""
    return _write(folder, siglip(), SIGLIP)


def _temper(visual: Any, text: Any, words: list[int]) -> None:
    """Even attention, no places, and towers that tell colours and words apart."""
    _quieten(text.token_embedding.weight, words)
    text.positional_embedding.zero_()
    visual.class_embedding.zero_()
    visual.positional_embedding.zero_()
    for block in (*text.transformer.resblocks, *visual.transformer.resblocks):
        block.attn.in_proj_weight[: 2 * 64].zero_()
        block.attn.out_proj.weight.mul_(10)
    seen = visual.transformer.resblocks[0].mlp
    seen.c_fc.weight.mul_(5)
    seen.c_proj.weight.mul_(20)


def _quieten(embedding: torch.Tensor, words: list[int]) -> None:
    """Let other tokens than some hardly count: layer norms divide by no less than their epsilon."""
    kept = embedding[words].clone()
    embedding.mul_(1e-4)
    embedding[words] = kept


def _write(folder: Path, model: torch.nn.Module, config: dict[str, Any]) -> Path:
    folder.mkdir()
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(tensors, folder / "open_clip_model.safetensors")
    half = [0.5, 0.5, 0.5]
    preprocess = {"size": [32, 32], "mean": half, "std": half, "resize_mode": "squash"}
    written = {"model_cfg": config, "preprocess_cfg": preprocess}
    (folder / "open_clip_config.json").write_text(json.dumps(written))
    return folder
