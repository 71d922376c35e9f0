"""Dense features against what the modules themselves give, one patch and one token at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from open_clip.tokenizer import SimpleTokenizer
from torch import Tensor, nn

from compo_pipeline.core.settings import SettingsError
from compo_pipeline.models.dense import (
    encode_images_densely,
    encode_text_tokens,
    encode_texts_densely,
)
from compo_pipeline.models.encoding import encode_images, encode_texts
from compo_pipeline.models.loading import load
from compo_pipeline.models.settings import ModelSettings

KINDS = ["tok", "avg", "clipa", "timm-avg", "timm-norm", "timm-token", "timm-map", "xcit"]
# Pooling is a mean and all behind it linear: the patches' mean is the image's embedding.
MEANS = ["avg", "timm-avg", "xcit"]


def seen(module: nn.Module, run: Any) -> Tensor:
    """What a module gives while something runs."""
    outputs: list[Tensor] = []
    handle = module.register_forward_hook(lambda _module, _inputs, output: outputs.append(output))
    with torch.no_grad():
        run()
    handle.remove()
    return outputs[0]


def slow_patch(visual: Any, state: Tensor) -> Tensor:
    """Embedding [D] of one patch's state [C] behind the blocks, module by module."""
    if hasattr(visual, "conv1"):
        return visual.ln_post(state) @ visual.proj
    trunk = visual.trunk
    if getattr(trunk, "attn_pool", None) is not None:
        # Over a single patch, attention can lie nowhere else.
        return visual.head(trunk.fc_norm(trunk.attn_pool(state[None, None])))[0]
    normed = trunk.fc_norm(state) if hasattr(trunk, "fc_norm") else state
    return visual.head(trunk.head(normed))


@pytest.mark.parametrize("kind", KINDS)
def test_patches_are_what_the_tower_gives_for_each(kind: str, build: Any, pixels: Any) -> None:
    model = build(kind)
    visual, images = model.visual, pixels(model)
    last = visual.transformer if hasattr(visual, "conv1") else visual.trunk.norm
    states = seen(last, lambda: visual(images))
    prefix = 1 if hasattr(visual, "conv1") else visual.trunk.num_prefix_tokens
    with torch.no_grad():
        found = encode_images_densely(model, images, "tiny")
        expected = [[slow_patch(visual, state) for state in row[prefix:]] for row in states]
    expected = torch.stack([torch.stack(row) for row in expected])
    assert found.patches.shape == expected.shape and found.patches.shape[1] >= 16
    torch.testing.assert_close(found.patches, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_pooled_images_are_the_plain_embeddings(kind: str, build: Any, pixels: Any) -> None:
    model = build(kind)
    images = pixels(model)
    with torch.no_grad():
        found = encode_images_densely(model, images, "tiny")
        torch.testing.assert_close(found.pooled, encode_images(model, images), atol=1e-5, rtol=0)
        mean = nn.functional.normalize(found.patches.mean(1), dim=-1)
    assert torch.allclose(mean, found.pooled, atol=1e-5) == (kind in MEANS)


def test_the_shipped_base_pools_its_patches_by_their_mean() -> None:
    model = load(ModelSettings()).model
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found = encode_images_densely(model, images, "scenes-base")
        expected = model.encode_image(images)
    assert found.patches.shape == (2, 64, 192)
    torch.testing.assert_close(found.patches.mean(1), expected, atol=1e-5, rtol=1e-5)


def projected(tower: Any, states: Tensor) -> Tensor:
    """What a text tower's own projection makes of the states of its tokens."""
    projection = tower.text_projection
    if isinstance(projection, nn.Linear):
        return projection(states)
    return states if projection is None else states @ projection


@pytest.mark.parametrize("text", ["clip", "custom"])
@pytest.mark.parametrize("changes", [{}, {"no_causal_mask": True}, {"proj_bias": True}], ids=str)
def test_tokens_are_what_the_tower_gives_for_each(
    text: str, changes: dict[str, Any], build: Any, tokens: Tensor
) -> None:
    model = build("tok", text, **changes)
    tower = model if text == "clip" else model.text
    states = seen(tower.ln_final, lambda: model.encode_text(tokens))
    with torch.no_grad():
        found = encode_texts_densely(model, tokens, "tiny")
        torch.testing.assert_close(found.pooled, encode_texts(model, tokens), atol=1e-5, rtol=0)
        plain = nn.functional.normalize(model.encode_text(tokens), dim=-1)
        torch.testing.assert_close(found.pooled, plain, atol=1e-5, rtol=0)
    length = 77 if "no_causal_mask" in changes else int(tokens.argmax(1).max()) + 1
    assert found.tokens.shape == (4, length, 24) and found.mask.shape == (4, length)
    expected = projected(tower, states[:, :length])
    torch.testing.assert_close(found.tokens, expected, atol=1e-5, rtol=1e-5)
    for row, ids in enumerate(tokens.tolist()):
        end = ids.index(49407)
        assert found.mask[row].tolist() == [1 <= place <= end for place in range(length)]
        last = nn.functional.normalize(found.tokens[row, end], dim=-1)
        torch.testing.assert_close(last, found.pooled[row], atol=1e-5, rtol=0)


# Texts of SigLIP's kind: no begin, the end is 1, the padding 0 (or 1 as well).
SIGLIP_IDS = torch.tensor(
    [[5, 9, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0], [7, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]]
)


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("clip", {}),
        ("clip", {"no_causal_mask": True}),
        ("clip", {"pool_type": "eos", "eos_id": 49407}),
        ("custom", {}),
        ("custom", {"proj_bias": True}),
        ("custom", {"pool_type": "last"}),
        ("custom", {"pool_type": "first", "no_causal_mask": True}),
        ("siglip", {}),
        ("siglip", {"proj_bias": False}),
        ("siglip", {"proj_type": "none", "width": 24, "heads": 2}),
    ],
    ids=str,
)
def test_all_tokens_of_every_pooling(
    text: str, changes: dict[str, Any], build: Any, tokens: Tensor
) -> None:
    """Each is what the tower's own norm and projection make of its state, and the pooled one is
    what the model itself gives.
    """
    model = build("tok", text, **changes)
    tower = model if text == "clip" else model.text
    ids = SIGLIP_IDS if text == "siglip" else tokens
    states = seen(tower.ln_final, lambda: model.encode_text(ids))
    with torch.no_grad():
        pooled, found = encode_text_tokens(model, ids, "tiny")
        plain = nn.functional.normalize(model.encode_text(ids), dim=-1)
    torch.testing.assert_close(pooled, plain, atol=1e-5, rtol=0)
    length = found.shape[1]
    read = "no_causal_mask" in changes or text == "siglip" or changes.get("pool_type") == "last"
    assert length == (ids.shape[1] if read else int(ids.argmax(1).max()) + 1)
    assert found.shape == (len(ids), length, 24)
    expected = projected(tower, states[:, :length])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_a_truncated_text_ends_at_its_last_token(build: Any) -> None:
    found = encode_texts_densely(build("tok"), SimpleTokenizer()(["word " * 90]), "tiny")
    assert found.mask[0].tolist() == [False] + [True] * 76


@pytest.mark.parametrize("kind", ["tok", "timm-map", "xcit"])
def test_gradients_flow_through_patches_and_tokens_in_bf16(
    kind: str, build: Any, pixels: Any, tokens: Tensor
) -> None:
    model = build(kind)
    with torch.autocast("cpu", torch.bfloat16):
        images = encode_images_densely(model, pixels(model), "tiny")
        texts = encode_texts_densely(model, tokens, "tiny")
    assert {value.dtype for value in (*images, *texts[:2])} == {torch.float32}
    (images.patches.square().sum() + texts.tokens[texts.mask].square().sum()).backward()
    first = model.visual.conv1 if kind == "tok" else next(model.visual.trunk.patch_embed.modules())
    for weight in (*first.parameters(), model.token_embedding.weight, model.text_projection):
        assert weight.grad.isfinite().all() and weight.grad.any()


def test_towers_of_unknown_kinds_are_refused_by_name(build: Any, pixels: Any) -> None:
    model = build("avg")
    model.visual.attn_pool = nn.Identity()
    with pytest.raises(SettingsError, match="model.name: 'odd' .*attentional pooler"):
        encode_images_densely(model, pixels(model), "odd")

    model = build("timm-avg")
    images = pixels(model)
    model.visual.trunk.global_pool = "max"
    with pytest.raises(SettingsError, match="'odd' .* pools by 'max'"):
        encode_images_densely(model, images, "odd")

    model = build("timm-avg")
    model.visual.head.append(nn.GELU())
    with pytest.raises(SettingsError, match=r"'odd' .* not linear \(.*GELU"):
        encode_images_densely(model, images, "odd")

    model = build("timm-map")
    model.visual.trunk.attn_pool.pos_embed = nn.Parameter(torch.zeros(1))
    with pytest.raises(SettingsError, match="'odd' .* pools by 'map' of a kind not known"):
        encode_images_densely(model, images, "odd")

    model.visual = nn.Identity()
    with pytest.raises(SettingsError, match="'odd' .* image tower is a Identity"):
        encode_images_densely(model, images, "odd")


def test_texts_without_begin_and_end_are_refused_by_name(build: Any, tokens: Tensor) -> None:
    siglip = build("timm-map", "siglip")
    ids = torch.ones(2, 12, dtype=torch.long)
    with pytest.raises(SettingsError, match="'odd' .* pools by 'last'"):
        encode_texts_densely(siglip, ids, "odd")
    with pytest.raises(SettingsError, match="'odd' .* <sot>"):
        encode_texts_densely(build("tok"), tokens[:, 1:], "odd")
    with pytest.raises(SettingsError, match="'odd' .* <sot>"):
        encode_texts_densely(build("tok"), tokens.clamp(max=49406), "odd")
    with pytest.raises(SettingsError, match="'odd' .* TextTransformer of another kind"):
        encode_texts_densely(build("tok", "custom", embed_cls=True), tokens, "odd")
