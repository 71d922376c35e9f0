"""Embeddings of a model's two towers, normalised, for training and evaluation alike.

Shapes: m images, K texts, T tokens of context, W width of the text tower, D width of the joint
space.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from open_clip.model import CLIP, CustomTextCLIP
from open_clip.timm_model import TimmModel
from open_clip.transformer import TextTransformer, VisionTransformer, text_global_pool
from PIL.Image import Image
from torch import Tensor, nn

from compo_pipeline.core.settings import SettingsError

# As CLIP was trained, and as open_clip trains all models, SigLIP's too.
MOST_SCALE = 100.0
# Texts of one length or about are encoded together: at most so many groups, of so many texts each.
# A pass of fewer texts keeps no GPU busy: it takes as long as one of all of them.
GROUPS, FEWEST, FEWEST_ON_GPU = 4, 32, 512


def encode_images(model: Any, pixels: Tensor) -> Tensor:
    """Image embeddings [m, D], float32 and normalised, of pixels [m, 3, H, W]."""
    return F.normalize(model.encode_image(pixels).float(), dim=-1)


@torch.inference_mode()
def embed(loaded: Any, images: Iterable[Image], texts: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Embeddings [m, D] of a few images and [K, D] of a few texts under a `LoadedModel`."""
    pixels = torch.stack([loaded.preprocess(image) for image in images]).to(loaded.device)
    tokens = loaded.tokenize(list(texts)).to(loaded.device)
    return encode_images(loaded.model, pixels), encode_texts(loaded.model, tokens)


def image_projection(model: Any) -> tuple[Any, str] | None:
    """Module or weight of the linear projection that ends an image tower, and its name, or None.

    None for towers where it is not known to come last.
    """
    visual = model.visual
    if isinstance(visual, TimmModel):
        return visual.head, "visual.head"
    if isinstance(visual, VisionTransformer) and visual.proj is not None:
        return visual.proj, "visual.proj"
    return None


def pool_images(model: Any, pixels: Tensor) -> Tensor:
    """Pooled image features [m, W] before `image_projection`, float32, of pixels [m, 3, H, W]."""
    visual = model.visual
    if isinstance(visual, TimmModel):
        pooled: Tensor = visual.trunk(pixels)
    else:
        pooled = visual._pool(visual.transformer(visual._embeds(pixels)))[0]
    return pooled.float()


def project_images(model: Any, pooled: Tensor) -> Tensor:
    """Image embeddings [m, D], float32 and normalised, of pooled images [m, W]."""
    found = image_projection(model)
    assert found is not None, "pooled images of a tower without a known projection"
    return F.normalize(project(pooled, found[0]).float(), dim=-1)


def encode_texts(model: Any, tokens: Tensor) -> Tensor:
    """Text embeddings [K, D], float32 and normalised, of token ids [K, T].

    Under a causal mask nothing behind the last token that is not padding is ever read, so
    open_clip's own text towers see texts sorted by length, in groups cut to their longest: the
    same numbers, at a fraction of the time.
    """
    tower = text_tower(model)
    if tower is None:
        features = model.encode_text(tokens)
    elif reads_padding(tower):
        features = _unnormalised_texts(tower, tokens)
    else:
        order = text_lengths(tokens).argsort(stable=True)
        fewest = FEWEST if tokens.device.type == "cpu" else FEWEST_ON_GPU
        groups = tokens[order].tensor_split(max(1, min(GROUPS, len(tokens) // fewest)))
        features = torch.cat([_unnormalised_texts(tower, group) for group in groups])[
            order.argsort()
        ]
    return F.normalize(features.float(), dim=-1)


def _unnormalised_texts(tower: Any, tokens: Tensor) -> Tensor:
    """Text embeddings [K, D] before normalisation, of token ids [K, T]."""
    states, tokens = text_states(tower, tokens)
    return project(pool_texts(tower, states, tokens), tower.text_projection)


def text_tower(model: Any) -> Any | None:
    """The module with the parts of open_clip's own text transformer, or None for other text towers.

    `CLIP` has the parts on itself, `CustomTextCLIP` in its `text`.
    """
    if isinstance(model, CLIP):
        return model
    tower = model.text if isinstance(model, CustomTextCLIP) else None
    if not isinstance(tower, TextTransformer) or tower.cls_emb is not None or tower.use_pad_mask:
        return None
    return tower


def text_projection(model: Any, name: str, otherwise: str = "") -> tuple[nn.Module, str]:
    """Module and attribute of the linear projection that ends a text tower.

    Args:
        model: the whole model.
        name: name of the model, for the error.
        otherwise: advice, for the error.

    Raises:
        SettingsError: it is not known that a projection ends the tower.
    """
    tower = text_tower(model)
    if tower is None or tower.text_projection is None:
        raise SettingsError(
            f"model.name: the text tower of '{name}' does not end in a projection of open_clip's "
            f"own; {otherwise}"
        )
    linear = isinstance(tower.text_projection, nn.Linear)
    return (tower.text_projection, "weight") if linear else (tower, "text_projection")


def token_embedding_name(model: nn.Module) -> str | None:
    """Name of the token embedding module of a Hugging Face text tower, or None for other towers.

    open_clip's own towers have it as `token_embedding`.
    """
    transformer: Any = getattr(getattr(model, "text", None), "transformer", None)
    if not hasattr(transformer, "get_input_embeddings"):
        return None
    embedding = transformer.get_input_embeddings()
    return next((name for name, part in model.named_modules() if part is embedding), None)


def pool_type(tower: Any) -> str:
    """Name of a text tower's pooling, that is, of the token it reads (argmax, eos, last, ...)."""
    return str(tower.pool_type if isinstance(tower, TextTransformer) else tower.text_pool_type)


def reads_padding(tower: Any) -> bool:
    """Whether the padding behind a text changes its embedding by this text tower."""
    return tower.attn_mask is None or pool_type(tower) not in ("argmax", "eos")


def text_lengths(tokens: Tensor, padding: int = 0) -> Tensor:
    """Number of tokens of each text before its padding [K].

    The place of the last id that is not padding, not the number of such ids: "!" within a word is
    token 0 too.
    """
    places = torch.arange(1, tokens.shape[1] + 1, device=tokens.device)
    return ((tokens != padding) * places).amax(dim=1)


def text_states(tower: Any, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Token states [K, T', W] after a text tower's final norm, and their token ids [K, T'].

    T' is the batch's longest text where a causal mask and the pooling let the rest go unread.
    """
    mask, kind = tower.attn_mask, tower.transformer.get_cast_dtype()
    if not reads_padding(tower):
        length = int(text_lengths(tokens).max())
        tokens, mask = tokens[:, :length], mask[:length, :length]
    x = tower.token_embedding(tokens).to(kind)
    x = x + tower.positional_embedding[: tokens.shape[1]].to(kind)
    return tower.ln_final(tower.transformer(x, attn_mask=mask)), tokens


def pool_texts(tower: Any, states: Tensor, tokens: Tensor) -> Tensor:
    """Pooled state [K, W] of each text, from token states [K, T, W] and token ids [K, T]."""
    eos = tower.eos_id if isinstance(tower, TextTransformer) else tower.text_eos_id
    pooled: Tensor = text_global_pool(states, tokens, pool_type(tower), eos_token_id=eos)
    return pooled


def project(states: Tensor, projection: nn.Linear | Tensor | None) -> Tensor:
    """States [..., W] projected into the joint space [..., D], if there is a projection."""
    if projection is None:
        return states
    projected: Tensor = (
        projection(states) if isinstance(projection, nn.Module) else states @ projection
    )
    return projected


def scale_of(model: Any) -> Tensor:
    """Scale of a model's logits, exp(logit_scale): a scalar tensor with gradient."""
    scale: Tensor = model.logit_scale.exp()
    return scale


@torch.no_grad()
def clamp_scale(model: Any) -> None:
    """Clamp a model's exp(logit_scale) to [1, 100] in place, after an optimiser step."""
    model.logit_scale.clamp_(0.0, math.log(MOST_SCALE))
