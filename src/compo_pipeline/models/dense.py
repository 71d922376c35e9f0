"""Dense features: every image patch and every text token in the joint space.

Shapes: m images, P patches, K texts, T tokens, D width of the joint space.

A patch's feature is what the tower would give for the image if that patch were all its pooling
saw: a linear projection of the normalised patch token, after attention pooling's value path where
the tower pools by attention. The pooled embedding comes from the same forward pass and equals
`encoding.encode_images` and `encode_texts`. A tower for which this is not known to hold is refused.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch.nn.functional as F
from open_clip.timm_model import TimmModel
from open_clip.transformer import VisionTransformer
from timm.layers.attention_pool import AttentionPoolLatent
from timm.models import Eva, Xcit
from timm.models import VisionTransformer as TimmTransformer
from torch import Tensor, nn

from compo_pipeline.core.settings import SettingsError
from compo_pipeline.models.encoding import pool_texts, pool_type, project, text_states, text_tower

FIX = "set model.name to a model whose towers are transformers (ViT-B-32-quickgelu, scenes-base)"


class NoPatches(SettingsError):
    """Error: a model gives no features of patches and text tokens in the joint space.

    Args:
        name: name of the model.
        reason: reason, as a part of the error.
        otherwise: advice if no other model fits.
    """

    def __init__(self, name: str, reason: str, otherwise: str | None = None) -> None:
        super().__init__(
            f"model.name: '{name}' gives no features of patches and tokens in the joint space: "
            f"{reason}; {FIX}, or {otherwise or 'take a method without a local loss'}"
        )
        self.reason = reason


class DenseImages(NamedTuple):
    """Embeddings of images [m, D] and of their patches [m, P, D], float32.

    Attributes:
        pooled: [m, D], normalised.
        patches: [m, P, D], in the joint space, not normalised.
    """

    pooled: Tensor
    patches: Tensor


class TextTokens(NamedTuple):
    """Embeddings of texts [K, D] and of all their tokens [K, T', D], float32.

    Attributes:
        pooled: [K, D], normalised.
        tokens: [K, T', D], in the joint space, not normalised. T' is the batch's longest text where
            the tower never reads behind it (CLIP's), else all of T.
    """

    pooled: Tensor
    tokens: Tensor


class DenseTexts(NamedTuple):
    """Embeddings of texts [K, D] and of their tokens [K, T, D], with a mask of content tokens.

    Attributes:
        pooled: [K, D], normalised.
        tokens: [K, T, D], in the joint space, not normalised; T is the batch's longest text.
        mask: [K, T], true for the tokens after <sot> up to and including <eot>.
    """

    pooled: Tensor
    tokens: Tensor
    mask: Tensor


def encode_images_densely(model: Any, pixels: Tensor, name: str) -> DenseImages:
    """Encode pixels [m, 3, H, W]: embeddings of the images and of their patches.

    Args:
        model: model of open_clip.
        pixels: pixels as the model's transform gives them.
        name: name of the model, for errors.

    Raises:
        SettingsError: the image tower is of no kind whose patches are known to be in the joint
            space.
    """
    refuse_without_patches(model, name)
    visual = model.visual
    read = _encode_vit if isinstance(visual, VisionTransformer) else _encode_timm
    pooled, patches = read(visual, pixels)
    return DenseImages(F.normalize(pooled.float(), dim=-1), patches.float())


def refuse_without_patches(model: Any, name: str, otherwise: str | None = None) -> None:
    """Raise an error if a model's architecture gives no patches in the joint space.

    Args:
        model: model of open_clip, whose weights are not read.
        name: name of the model, for errors.
        otherwise: advice if no other model fits, for errors.

    Raises:
        SettingsError: the image tower is of no kind whose patches are known to be.
    """
    visual = model.visual
    reason = f"its image tower is a {type(visual).__name__}"
    if isinstance(visual, VisionTransformer):
        reason = "its image tower has open_clip's attentional pooler" if visual.attn_pool else ""
    elif isinstance(visual, TimmModel):
        reason = _unsupported_reason(visual)
    if reason:
        raise NoPatches(name, reason, otherwise)


def _encode_vit(visual: VisionTransformer, pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Embeddings [m, D] and patch features [m, P, D] of open_clip's own vision transformer.

    With `final_ln_after_pool` (CLIPA) the tower norms the mean of the patches, and here each
    patch is normed as that mean is.
    """
    given = visual.forward_intermediates(pixels, indices=1, output_fmt="NLC")
    last = given["image_intermediates"][-1]
    return given["image_features"], project(visual.ln_post(last), visual.proj)


def _encode_timm(visual: TimmModel, pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Embeddings [m, D] and patch features [m, P, D] of a timm image tower."""
    trunk = visual.trunk
    states = trunk.forward_features(pixels)
    pooled: Tensor = visual.head(trunk.forward_head(states))
    patches = states[:, trunk.num_prefix_tokens :]
    pool = getattr(trunk, "attn_pool", None)
    if pool is not None:
        patches = _through_attention_pool(pool, patches)
    if hasattr(trunk, "fc_norm"):
        patches = trunk.fc_norm(patches)
    return pooled, visual.head(trunk.head(patches))


def _unsupported_reason(visual: TimmModel) -> str:
    """Reason why a timm image tower is of no supported kind, empty if it is supported."""
    trunk: Any = visual.trunk
    if not isinstance(trunk, TimmTransformer | Eva | Xcit):
        return f"its image tower is a timm {type(trunk).__name__}"
    pool: Any = getattr(trunk, "attn_pool", None)
    if pool is None:
        known = trunk.global_pool in ("avg", "token")
    else:
        kind = (type(pool), getattr(pool, "pos_embed", None), getattr(pool, "latent_len", 1))
        known = kind == (AttentionPoolLatent, None, 1)
    if not known:
        return f"its image tower pools by '{trunk.global_pool}' of a kind not known"
    last = [*visual.head, trunk.head]
    if not all(isinstance(part, nn.Linear | nn.Dropout | nn.Identity) for part in last):
        kinds = ", ".join(type(part).__name__ for part in last)
        return f"its image projection is not linear ({kinds})"
    return ""


def _through_attention_pool(pool: Any, patches: Tensor) -> Tensor:
    """Output of attention pooling for each patch [m, P, C], if all attention is on that patch.

    Source: C2LIP, Sec. 3 (t = out_proj(value(V_p)), then t + mlp(norm(t))).
    """
    value = pool.kv(patches).chunk(2, dim=-1)[1]
    pooled: Tensor = pool.proj(value)
    return pooled if pool.mlp is None else pooled + pool.mlp(pool.norm(pooled))


def encode_text_tokens(model: Any, tokens: Tensor, name: str) -> TextTokens:
    """Encode token ids [K, T]: embeddings of the texts and of all tokens, padding included.

    Args:
        model: model of open_clip.
        tokens: tokens as the model's tokenizer gives them.
        name: name of the model, for errors.

    Raises:
        SettingsError: the text tower is of another kind than CLIP's and SigLIP's.
    """
    tower = dense_text_tower(model, name)
    states, ids = text_states(tower, tokens)
    pooled = project(pool_texts(tower, states, ids), tower.text_projection)
    return TextTokens(
        pooled=F.normalize(pooled.float(), dim=-1),
        tokens=project(states, tower.text_projection).float(),
    )


def encode_texts_densely(model: Any, tokens: Tensor, name: str) -> DenseTexts:
    """Encode token ids [K, T]: embeddings of texts and tokens, with a mask of content tokens.

    Args:
        model: model of open_clip.
        tokens: tokens as the model's tokenizer gives them.
        name: name of the model, for errors.

    Raises:
        SettingsError: the text tower is of another kind than CLIP's, or the tokenizer does not
            open texts with <sot> and close them with <eot>.
    """
    tower = dense_text_tower(model, name, marked=True)
    pooled, dense = encode_text_tokens(model, tokens, name)
    return DenseTexts(
        pooled, dense, _own_token_mask(tokens[:, : dense.shape[1]], tower.vocab_size, name)
    )


def dense_text_tower(
    model: Any, name: str, otherwise: str | None = None, *, marked: bool = False
) -> Any:
    """The text tower of a model that gives text tokens in the joint space.

    Args:
        model: model of open_clip, whose weights are not read.
        name: name of the model, for errors.
        otherwise: advice if no other model fits, for errors.
        marked: whether token ids must say where a text begins and ends.

    Raises:
        SettingsError: the text tower is of no kind whose tokens are known to be there.
    """
    tower = text_tower(model)
    if tower is None:
        kind = type(getattr(model, "text", model)).__name__
        raise NoPatches(name, f"its text tower is a {kind} of another kind than CLIP's", otherwise)
    if marked and pool_type(tower) != "argmax":
        # SigLIP's way: no <sot>, and <eot> is the padding; the two ids are equal.
        reason = (
            f"its text tower pools by '{pool_type(tower)}', so that token ids alone do not say "
            "where a text begins and ends"
        )
        raise NoPatches(name, reason, otherwise)
    return tower


def _own_token_mask(ids: Tensor, words: int, name: str) -> Tensor:
    """Mask [K, T] of the tokens after <sot> up to and including <eot>.

    CLIP's vocabulary ends in <sot> and <eot>; argmax pooling takes the largest id for <eot>.
    """
    end = ids.argmax(dim=1, keepdim=True)
    marked = (ids[:, 0] == words - 2) & (ids.gather(1, end)[:, 0] == words - 1)
    if not bool(marked.all()):
        form = f"<sot> ({words - 2}) ... <eot> ({words - 1})"
        raise NoPatches(name, f"its tokenizer does not write texts as {form}")
    place = ids.new_ones(ids.shape).cumsum(1) - 1
    return (place > 0) & (place <= end)


def attention(patches: Tensor, phrases: Tensor) -> Tensor:
    """Attention of phrases over image patches [m, K, P]: softmax of dot products (C2LIP).

    Source: C2LIP paper, Eq. 6; it has no temperature. Phrases times a scale give one with it.

    Args:
        patches: [m, P, D], in the joint space, not normalised.
        phrases: [K, D], normalised.

    Returns:
        [m, K, P], positive, with sum 1 over the patches.
    """
    return (phrases @ F.normalize(patches, dim=-1).mT).softmax(dim=-1)
