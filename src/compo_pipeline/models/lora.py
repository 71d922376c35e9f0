"""Low-rank adapters (LoRA) on a model's towers, by peft.

On patch convolutions, attention in and out projections and MLPs; all else is frozen, the
projections into the joint space and logit_scale included. A weight W becomes W + B A / r, with
B = 0 at the start, so that the start is exactly the base.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Set
from typing import Any, Literal

import torch
from open_clip.timm_model import TimmModel
from open_clip.transformer import VisionTransformer
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora.layer import Conv2d, LoraLayer, MultiheadAttention
from timm.models import Eva, Xcit
from timm.models import VisionTransformer as TimmTransformer
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear as OutProjection

from compo_pipeline.core.settings import SettingsError
from compo_pipeline.models.encoding import text_tower

# The linear layers of a transformer block, by their own names in open_clip and timm.
KINDS = {
    "attention in-projection": {"qkv", "q", "k", "v", "kv", "q_proj", "k_proj", "v_proj"},
    "attention out-projection": {"proj"},
    "MLP": {"c_fc", "c_proj", "fc1", "fc1_g", "fc1_x", "fc2"},
}
# peft allows several adapters on one layer, by name; there is ever one here.
ADAPTER = "default"
Convolution = Literal["peft", "loralib"]
"""Whose adapter a patch convolution gets: `peft`'s has the rank that is asked for, `loralib`'s is
of nearly full rank (`LoralibConvolution`)."""


def attach(
    model: nn.Module,
    rank: int,
    name: str,
    towers: Set[str],
    seed: int,
    convolution: Convolution = "peft",
) -> None:
    """Add LoRA adapters to the towers that train, in place, and freeze all other weights.

    Args:
        model: model of open_clip in evaluation mode.
        rank: rank of every adapter. Its update is scaled by 1 / rank.
        name: name of the model, for errors.
        towers: image, text or both.
        seed: seed with which the adapters' A is drawn.
        convolution: the kind of adapter on patch convolutions.

    Raises:
        SettingsError: a projection that LoRA is for was not found, or an adapter on it would
            have no effect.
    """
    targets = adapter_targets(model, name, towers)
    config = LoraConfig(r=rank, lora_alpha=1, target_modules="|".join(map(re.escape, targets)))
    custom: dict[type, type] = {nn.MultiheadAttention: FusedAttention}
    if convolution == "loralib":
        custom[nn.Conv2d] = LoralibConvolution
    config._register_custom_module(custom)
    model.requires_grad_(False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(config, model)
    with torch.enable_grad():
        _refuse_without_gradient(model, name, towers)


def merge(model: nn.Module) -> None:
    """Merge every LoRA adapter into its weight and remove the adapters, in place."""
    layers = {key: part for key, part in model.named_modules() if isinstance(part, LoraLayer)}
    for key, layer in layers.items():
        parent, _, leaf = key.rpartition(".")
        if isinstance(layers.get(parent.removesuffix(".base_layer")), FusedAttention):
            continue  # merged with the attention that it belongs to
        if isinstance(layer, FusedAttention):
            base: nn.Module = layer.plain_attention()
        else:
            layer.merge()
            base = layer.get_base_layer()
        setattr(model.get_submodule(parent), leaf, base)
    del model.peft_config


def adapter_targets(model: Any, name: str, towers: Set[str]) -> list[str]:
    """Names of the modules of a model that get a LoRA adapter.

    Weights are not read.

    Raises:
        SettingsError: a projection that LoRA is for was not found.
    """
    parts: list[Any] = []
    if "image" in towers:
        parts += _image_modules(model.visual, name)
    if "text" in towers:
        tower = text_tower(model)
        if tower is None:
            raise _refusal(name, "its text tower is of another kind than CLIP's")
        parts += _block_modules(tower.transformer.resblocks, name)
    names = {id(module): key for key, module in model.named_modules()}
    return [names[id(part)] for part in parts]


def _image_modules(visual: Any, name: str) -> Iterator[nn.Module]:
    """Modules of an image tower that get LoRA adapters.

    Raises an error for unknown towers.
    """
    if isinstance(visual, VisionTransformer) and visual.attn_pool is None:
        yield from _stem_convolutions(visual.conv1, name)
        yield from _block_modules(visual.transformer.resblocks, name)
        return
    trunk: Any = visual.trunk if isinstance(visual, TimmModel) else None
    if not isinstance(trunk, TimmTransformer | Eva | Xcit):
        kind = type(trunk or visual).__name__
        raise _refusal(name, f"its image tower, a {kind}, is of no known kind")
    yield from _stem_convolutions(trunk.patch_embed, name)
    yield from _block_modules(trunk.blocks, name)
    if isinstance(trunk, Xcit) and trunk.global_pool == "token":
        # Under average pooling nothing reads the class token, which these blocks alone change.
        yield from _block_modules(trunk.cls_attn_blocks, name)
    if getattr(trunk, "attn_pool", None) is not None:
        yield from _block_modules([trunk.attn_pool], name)


def _stem_convolutions(stem: nn.Module, name: str) -> list[nn.Module]:
    """The patch convolution of an image tower, or all convolutions of its stem."""
    found = [part for part in stem.modules() if isinstance(part, nn.Conv2d)]
    if not found or any(part.groups > 1 for part in found):
        raise _refusal(name, "its patch convolution was not found, or is grouped")
    return list(found)


def _block_modules(blocks: Iterable[nn.Module], name: str) -> Iterator[nn.Module]:
    """Attention and MLP projections of these transformer blocks, which get LoRA adapters.

    Raises:
        SettingsError: a kind is missing, or a linear layer is of no known kind.
    """
    for block in blocks:
        missing = set(KINDS)
        for key, part in block.named_modules():
            leaf = key.rpartition(".")[2]
            if isinstance(part, nn.MultiheadAttention):
                kinds = {"attention in-projection", "attention out-projection"}
            elif isinstance(part, nn.Linear) and not isinstance(part, OutProjection):
                kinds = {kind for kind, names in KINDS.items() if leaf in names}
                if not kinds:
                    raise _refusal(
                        name, f"the linear layer '{key}' of its blocks is of no known kind"
                    )
            else:
                continue
            missing -= kinds
            yield part
        if missing:
            raise _refusal(name, f"a block of it has no {' and no '.join(sorted(missing))}")


def _refuse_without_gradient(model: Any, name: str, towers: Set[str]) -> None:
    """Raise an error if some LoRA adapters get no gradient, so that they have no effect.

    Some layers' weights are read past the layer.
    """
    draw = torch.Generator().manual_seed(0)
    parameters = {key: value for key, value in model.named_parameters() if ".lora_B." in key}
    device = model.logit_scale.device
    total = torch.zeros((), device=device)
    if "image" in towers:
        pixels = torch.randn(1, 3, *model.visual.image_size, generator=draw)
        total = total + _random_sum(model.encode_image(pixels.to(device)), draw)
    if "text" in towers:
        tokens = torch.randint(1, model.vocab_size, (1, model.context_length), generator=draw)
        total = total + _random_sum(model.encode_text(tokens.to(device)), draw)
    gradients = torch.autograd.grad(total, list(parameters.values()), allow_unused=True)
    idle = [
        key.partition(".lora_B.")[0]
        for key, gradient in zip(parameters, gradients, strict=True)
        if gradient is None or not gradient.any()
    ]
    if idle:
        some = ", ".join(idle[:3])
        raise _refusal(name, f"adapters on {len(idle)} layers would have no effect ({some}, ...)")


def _random_sum(embeddings: Tensor, draw: torch.Generator) -> Tensor:
    """Sum of embeddings [m, D] with random weights, so that a gradient reaches every entry."""
    return (embeddings * torch.randn(embeddings.shape, generator=draw).to(embeddings)).sum()


def _refusal(name: str, problem: str) -> SettingsError:
    """The error to raise if LoRA does not fit a model."""
    return SettingsError(
        f"model.name: LoRA does not fit '{name}': {problem}; set training.lora.rank to null, or "
        "model.name to a model whose towers are transformers (ViT-B-32-quickgelu, scenes-base)"
    )


class FusedAttention(MultiheadAttention):
    """LoRA on the fused in-projection and the out-projection of `nn.MultiheadAttention`.

    torch reads both weights without calling a layer, so peft adds the update to them before each
    call and subtracts it afterwards. That rounds: frozen weights drift by 1e-6 in 3,000 steps;
    and it adds the out-projection's update twice (peft 0.21). Here the sums replace the
    weights during the call alone.
    """

    def reset_lora_parameters(self, adapter_name: str, init_lora_weights: Any) -> None:
        """Initialise the in-projection's LoRA factors: A Xavier-uniform, B zero.

        Source: A as in loralib's attention, which SPARCL's, FSC-CLIP's and SVLC's code has; of
        other layers A is Kaiming-uniform, there and here.
        """
        super().reset_lora_parameters(adapter_name, init_lora_weights)  # type: ignore[no-untyped-call]
        nn.init.xavier_uniform_(self.lora_A[adapter_name].get_parameter("weight"))

    def forward(self, query: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Output of the attention for a query [K, T, W], with the LoRA-adapted weights."""
        base = self.get_base_layer()
        return functional_call(
            base, self._adapted_weights(), (query, *args), kwargs, tie_weights=False
        )

    @torch.no_grad()
    def plain_attention(self) -> nn.MultiheadAttention:
        """The attention module with LoRA merged into its weights.

        Ends the use of this layer.
        """
        base: Any = self.get_base_layer()
        for key, weight in self._adapted_weights().items():
            base.get_parameter(key).copy_(weight)
        base.out_proj = base.out_proj.get_base_layer()
        attention: nn.MultiheadAttention = base
        return attention

    def _adapted_weights(self) -> dict[str, Tensor]:
        """Attention weights plus their LoRA updates, by their names in the base layer."""
        base: Any = self.get_base_layer()
        out = base.out_proj
        return {
            "in_proj_weight": base.in_proj_weight + self.get_delta_weight(ADAPTER),
            "out_proj.base_layer.weight": out.weight + out.get_delta_weight(ADAPTER),
        }


class LoralibConvolution(Conv2d):
    """LoRA on a square convolution as in loralib, which SPARCL's and FSC-CLIP's code uses.

    For in and out channels and a k x k kernel, A is [r k, in k] and B [out k, r k]; their product
    is read as a kernel [out, in, k, k]. Its rank is up to r k, where peft's is r: on the patches of
    ViT-B/32 nearly full at r = 16.
    """

    def update_layer(self, adapter_name: str, r: int, *args: Any, **kwargs: Any) -> None:
        """Create the LoRA factors of an adapter: A Kaiming-uniform, B zero."""
        super().update_layer(adapter_name, r, *args, **kwargs)
        base: Any = self.get_base_layer()
        size = base.kernel_size[0]
        self.lora_A[adapter_name] = nn.Linear(base.in_channels * size, r * size, bias=False)
        zero = nn.Linear(r * size, base.out_channels * size, bias=False)
        nn.init.zeros_(zero.weight)
        self.lora_B[adapter_name] = zero
        self._move_adapter_to_device_of_base_layer(adapter_name)
        self.set_adapter(self.active_adapters)

    def get_delta_weight(self, adapter: str) -> Tensor:
        """LoRA's update [out, in, k, k] of the convolution kernel."""
        a, b, base = (
            part.get_parameter("weight")
            for part in (self.lora_A[adapter], self.lora_B[adapter], self.get_base_layer())
        )
        update: Tensor = (b @ a).view_as(base) * self.scaling[adapter]
        return update

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Convolution of images [m, in, H, W] with the LoRA-adapted kernel."""
        base: Any = self.get_base_layer()
        adapted: Tensor = base._conv_forward(
            x, base.weight + self.get_delta_weight(ADAPTER), base.bias
        )
        return adapted
