"""LoRA changes the weights it is for and no others, and every adapter learns."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compo_pipeline.core.settings import SettingsError
from compo_pipeline.models.encoding import encode_images, encode_texts
from compo_pipeline.models.lora import attach, merge
from compo_pipeline.training.optimisation import adapter_names

BOTH = frozenset({"image", "text"})
TWO = 2

# What the method's page names, as the weights are called in a plain model of each kind.
OPEN_CLIP = r"attn\.in_proj_weight|attn\.out_proj\.weight|mlp\.c_fc\.weight|mlp\.c_proj\.weight"
TEXT = rf"(text\.)?transformer\.resblocks\.\d\.({OPEN_CLIP})"
BLOCK = r"attn\.(qkv|q|k|v|proj)\.weight|mlp\.fc[12]\.weight"
ADAPTED = {
    "tok": rf"visual\.conv1\.weight|visual\.transformer\.resblocks\.\d\.({OPEN_CLIP})|{TEXT}",
    "timm-token": rf"visual\.trunk\.patch_embed\.proj\.weight|visual\.trunk\.blocks\.\d\.({BLOCK})"
    rf"|{TEXT}",
    "timm-map": rf"visual\.trunk\.patch_embed\.proj\.weight|visual\.trunk\.blocks\.\d\.({BLOCK})"
    rf"|visual\.trunk\.attn_pool\.(q|kv|proj|mlp\.fc[12])\.weight|{TEXT}",
    # The class-attention blocks move the class token alone, and the mean of the patches is read.
    "xcit": rf"visual\.trunk\.patch_embed\.proj\.[024]\.0\.weight"
    rf"|visual\.trunk\.blocks\.\d+\.({BLOCK})|{TEXT}",
}
KINDS = {"tok": "clip", "timm-token": "custom", "timm-map": "siglip", "xcit": "clip"}


def texts_of(model: Any) -> Tensor:
    """Random token ids [3, T] that end in CLIP's <eot>, or SigLIP's padding."""
    draw = torch.Generator().manual_seed(2)
    ids = torch.randint(1, 40, (3, model.context_length), generator=draw)
    ids[:, 6] = model.vocab_size - 1
    ids[:, 7:] = 0
    return ids


def outputs(model: Any, pixels: Any) -> tuple[Tensor, Tensor]:
    """Embeddings of three images and three texts."""
    return encode_images(model, pixels(model)), encode_texts(model, texts_of(model))


def loss(model: Any, pixels: Any) -> Tensor:
    """A scalar that reads both towers."""
    draw = torch.Generator().manual_seed(3)
    return sum((e * torch.randn(e.shape, generator=draw)).sum() for e in outputs(model, pixels))


def randomise(model: nn.Module, size: float = 0.3) -> None:
    """Adapters as they might be after training."""
    draw = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name in adapter_names(model):
            parameter = model.get_parameter(name)
            parameter.copy_(size * torch.randn(parameter.shape, generator=draw))


@pytest.mark.parametrize("kind", KINDS)
def test_the_specified_weights_change_by_the_rank_and_no_others(
    kind: str, build: Any, pixels: Any
) -> None:
    model = build(kind, KINDS[kind])
    base = {name: value.clone() for name, value in model.state_dict().items()}
    attach(model, TWO, "tiny", BOTH, seed=0)
    randomise(model)
    with torch.no_grad():
        before = outputs(model, pixels)
        merge(model)
        after = outputs(model, pixels)
    merged = model.state_dict()
    assert merged.keys() == base.keys()
    changed = {name for name, value in merged.items() if not torch.equal(value, base[name])}
    assert changed == {name for name in base if re.fullmatch(ADAPTED[kind], name)}
    for name in changed:
        difference = (merged[name] - base[name]).double().flatten(1)
        assert torch.linalg.matrix_rank(difference, rtol=1e-4) == 2, name
    for one, other in zip(before, after, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0)


def test_an_update_is_b_times_a_by_the_rank(build: Any) -> None:
    model = build("tok")
    base = {name: value.clone() for name, value in model.state_dict().items()}
    attach(model, TWO, "tiny", BOTH, seed=0)
    randomise(model)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    merge(model)
    block = "visual.transformer.resblocks.1"
    for layer, weight in (
        ("attn", "attn.in_proj_weight"),
        ("attn.base_layer.out_proj", "attn.out_proj.weight"),
        ("mlp.c_fc", "mlp.c_fc.weight"),
    ):
        a, b = (state[f"{block}.{layer}.lora_{side}.default.weight"] for side in "AB")
        expected = base[f"{block}.{weight}"] + b @ a / 2
        torch.testing.assert_close(model.state_dict()[f"{block}.{weight}"], expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_convolution_of_loralib_s_has_its_form_and_merges(
    kind: str, build: Any, pixels: Any
) -> None:
    """loralib: weight + (B A).view(out, in, k, k) / r, with A [r k, in k] and B [out k, r k]."""
    model = build(kind, KINDS[kind])
    convolutions = {
        name: (part, part.weight.detach().clone())
        for name, part in model.named_modules()
        if isinstance(part, nn.Conv2d) and re.fullmatch(ADAPTED[kind], f"{name}.weight")
    }
    with torch.no_grad():
        expected = outputs(model, pixels)
    attach(model, TWO, "tiny", BOTH, seed=0, convolution="loralib")
    with torch.no_grad():
        for one, other in zip(outputs(model, pixels), expected, strict=True):
            torch.testing.assert_close(one, other, atol=1e-6, rtol=0)
    loss(model, pixels).backward()
    updates = {}
    for name, (part, weight) in convolutions.items():
        a, b = (model.get_parameter(f"{name}.lora_{side}.default.weight") for side in "AB")
        size = part.kernel_size[0]
        assert a.shape == (TWO * size, part.in_channels * size) and not b.any()
        assert b.shape == (part.out_channels * size, TWO * size) and b.grad.any()
        draw = torch.Generator().manual_seed(5)
        with torch.no_grad():
            b.copy_(0.3 * torch.randn(b.shape, generator=draw))
        updates[name] = weight + (b @ a).reshape(weight.shape) / TWO
    assert updates
    with torch.no_grad():
        before = outputs(model, pixels)
        merge(model)
        after = outputs(model, pixels)
    for name, weight in updates.items():
        torch.testing.assert_close(model.get_parameter(f"{name}.weight"), weight)
    for one, two in zip(before, after, strict=True):
        torch.testing.assert_close(one, two, atol=1e-5, rtol=0)
    assert not torch.allclose(after[0], expected[0])


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_reach_every_adapter_and_nothing_else(kind: str, build: Any, pixels: Any) -> None:
    model = build(kind, KINDS[kind])
    attach(model, TWO, "tiny", BOTH, seed=0)
    names = adapter_names(model)
    trained = {name for name, value in model.named_parameters() if value.requires_grad}
    assert trained == set(names)
    frozen = {
        name: value.clone() for name, value in model.state_dict().items() if name not in trained
    }
    optimizer = torch.optim.SGD([model.get_parameter(name) for name in names], lr=1.0)
    for step in range(2):
        optimizer.zero_grad()
        loss(model, pixels).backward()
        for name, parameter in model.named_parameters():
            if name not in trained:
                assert parameter.grad is None, name
            elif "lora_B" in name or step == 1:
                assert parameter.grad.any(), name
        optimizer.step()
    state = model.state_dict()
    assert all(torch.equal(state[name], value) for name, value in frozen.items())


def test_frozen_weights_do_not_drift(build: Any, tokens: Tensor) -> None:
    """peft's own layer adds and subtracts the update at each call, which rounds."""
    model = build("tok")
    base = model.transformer.resblocks[0].attn.in_proj_weight.clone()
    attach(model, TWO, "tiny", BOTH, seed=0)
    randomise(model)
    with torch.no_grad():
        for _ in range(5):
            encode_texts(model, tokens)
    assert torch.equal(model.transformer.resblocks[0].attn.base_layer.in_proj_weight, base)


@pytest.mark.parametrize("tower", ["image", "text"])
def test_a_tower_that_does_not_train_has_no_adapters(tower: str, build: Any, pixels: Any) -> None:
    model = build("tok")
    attach(model, TWO, "tiny", frozenset({tower}), seed=0)
    assert {name.startswith("visual.") for name in adapter_names(model)} == {tower == "image"}
    randomise(model)
    plain = build("tok")
    with torch.no_grad():
        same = [
            torch.allclose(a, b, atol=1e-6)
            for a, b in zip(outputs(model, pixels), outputs(plain, pixels), strict=True)
        ]
    assert same == [tower == "text", tower == "image"]


def test_the_seed_draws_a_and_nothing_else(build: Any) -> None:
    drawn = []
    for seed in (0, 0, 1):
        model = build("tok")
        torch.manual_seed(5)
        attach(model, TWO, "tiny", BOTH, seed=seed)
        drawn.append([model.get_parameter(name).clone() for name in adapter_names(model)])
        assert torch.rand(1) == torch.rand(1, generator=torch.Generator().manual_seed(5))
    same = [all(map(torch.equal, drawn[0], other)) for other in drawn[1:]]
    assert same == [True, False]


def test_a_has_the_distribution_of_loralib(build: Any) -> None:
    """ytaek-oh/fsc-clip src/training/models/lora_utils/lora_layers.py: `_reset_parameters` of the
    attention, `reset_parameters` of linear layers.
    """
    model = build("tok")
    attach(model, 16, "tiny", BOTH, seed=0, convolution="loralib")
    for key in (name for name in adapter_names(model) if "lora_A" in name):
        value = model.get_parameter(key).detach()
        if key.endswith("attn.lora_A.default.weight"):
            theirs = nn.init.xavier_uniform_(torch.empty_like(value))
        else:
            theirs = nn.init.kaiming_uniform_(torch.empty_like(value), a=math.sqrt(5))
        # The largest of hundreds of uniform draws is nearly the bound of their distribution.
        assert value.abs().max().item() == pytest.approx(theirs.abs().max().item(), rel=0.05), key


def test_models_that_lack_a_projection_are_refused_by_name(build: Any) -> None:
    def refused(model: Any, problem: str) -> None:
        with pytest.raises(
            SettingsError, match=f"model.name: LoRA does not fit 'odd': .*{problem}"
        ):
            attach(model, TWO, "odd", BOTH, seed=0)

    model = build("tok")
    model.transformer.resblocks[1].mlp = nn.Identity()
    refused(model, "no MLP")

    model = build("timm-token")
    model.visual.trunk.blocks[2].mlp.gate = nn.Linear(2, 2)
    refused(model, "'mlp.gate' of its blocks is of no known kind")

    refused(build("timm-convolutional"), "image tower, a ConvNeXt")
    refused(build("tok", "custom", embed_cls=True), "text tower")


def test_an_adapter_that_is_read_past_is_refused(
    build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in timm's EVA attention, which calls `F.linear` on its layer's weight."""
    model = build("timm-token")
    mlp = model.visual.trunk.blocks[0].mlp

    def past(x: Tensor) -> Tensor:
        return mlp.fc2(mlp.act(F.linear(x, mlp.fc1.weight, mlp.fc1.bias)))

    monkeypatch.setattr(mlp, "forward", past)
    with pytest.raises(SettingsError, match=r"no effect \(visual.trunk.blocks.0.mlp.fc1"):
        attach(model, TWO, "odd", BOTH, seed=0)
