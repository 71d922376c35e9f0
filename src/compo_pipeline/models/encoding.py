"""Embeddings of a model's two towers, normalised, for training and evaluation alike.

Shapes: m images, K texts, T tokens of context, D width of the joint space.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from open_clip.model import CLIP
from open_clip.transformer import text_global_pool
from torch import Tensor, nn


def encode_images(model: Any, pixels: Tensor) -> Tensor:
    """Image embeddings [m, D], float32 and normalised, of pixels [m, 3, H, W]."""
    return F.normalize(model.encode_image(pixels).float(), dim=-1)


def encode_texts(model: Any, tokens: Tensor) -> Tensor:
    """Text embeddings [K, D], float32 and normalised, of token ids [K, T].

    Under a causal mask nothing behind the last token that is not padding is ever read, so for
    open_clip's own text tower the batch is cut to its longest text: the same numbers, at a
    fraction of the time.
    """
    if isinstance(model, CLIP) and model.attn_mask is not None and _pads_behind(model):
        features = _encode_trimmed(model, tokens)
    else:
        features = model.encode_text(tokens)
    return F.normalize(features.float(), dim=-1)


def _pads_behind(model: CLIP) -> bool:
    """Whether pooling reads the end-of-text token, with padding behind it."""
    return model.text_pool_type in ("argmax", "eos")


def _encode_trimmed(model: CLIP, tokens: Tensor) -> Tensor:
    """open_clip's `CLIP.encode_text` on as many positions as the longest text takes."""
    # The last id that is not 0, not the number of such ids: "!" within a word is token 0 as well.
    length = int((tokens != 0).any(0).nonzero().max()) + 1
    tokens = tokens[:, :length]
    kind = model.transformer.get_cast_dtype()
    x = model.token_embedding(tokens).to(kind)
    x = x + model.positional_embedding[:length].to(kind)
    x = model.transformer(x, attn_mask=model.attn_mask[:length, :length])
    eos = getattr(model, "text_eos_id", None)
    pooled: Tensor = text_global_pool(
        model.ln_final(x), tokens, model.text_pool_type, eos_token_id=eos
    )
    if model.text_projection is None:
        return pooled
    projection = model.text_projection
    projected: Tensor = (
        projection(pooled) if isinstance(projection, nn.Linear) else pooled @ projection
    )
    return projected


def scale_of(model: Any) -> Tensor:
    """exp(logit_scale), a scalar tensor with gradient."""
    scale: Tensor = model.logit_scale.exp()
    return scale


@torch.no_grad()
def clamp_scale(model: Any, most: float = 100.0) -> None:
    """Keep exp(logit_scale) within [1, most], after an optimiser step."""
    model.logit_scale.clamp_(0.0, torch.tensor(most).log().item())
