"""An image in another one's style, as SPARCL makes it: AdaIN, and features in a prompt's padding.

AdaIN (Huang and Belongie 2017, Eq. 8; SPARCL, Sec. 3: content synthetic, style real) gives channels
of latents, pixels or features of VGG another image's statistics. VGG (Huang and Belongie 2017, Sec.
5) is VGG-19 up to relu4_1, and a decoder that mirrors it. The weights are the user's own, as state
dicts of the two sequences below, layers counted from 0, as the PyTorch ports of the paper keep
them. The encoder's first convolution, 1 x 1, fits the colours to VGG.

Injection (SPARCL, Sec. 3): of a text-to-image model's prompt embedding, the positions up to the end
of the text decide what is painted, the padding behind it decides the style. The padding is replaced
by the real image's projected CLIP embedding, as it is: not normalised.

Shapes: b images; pixels [b, 3, H, W] in 0..1; features [b, 512, H/8, W/8].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import (
    Conv2d,
    MaxPool2d,
    Module,
    ReflectionPad2d,
    ReLU,
    Sequential,
    UpsamplingNearest2d,
)

from compo_pipeline.core.settings import SettingsError
from compo_pipeline.core.untrusted import check_weights_archive

# Channels of the convolutions between two changes of the resolution.
_ENCODER = ((64, 64), (128, 128), (256, 256, 256, 256), (512,))
_DECODER = ((256,), (256, 256, 256, 128), (128, 64), (64, 3))


def adain(content: Tensor, style: Tensor, weight: float = 0.5) -> Tensor:
    """Adaptive instance normalisation: give the content's channels the style's mean and deviation.

    A channel that is constant in the content takes the style's mean: it has no deviation to scale.

    Args:
        content: [b, C, H, W] feature maps: latents or pixels.
        style: [b, C, h, w], of any size.
        weight: 0 gives the content back, 1 the style's statistics.

    Returns:
        [b, C, H, W] of the content's type; statistics are taken in float32 at least.

    Raises:
        ValueError: batch or channels differ, or the weight is outside 0 to 1.
    """
    if content.shape[:2] != style.shape[:2]:
        raise ValueError(
            f"content {tuple(content.shape)} and style {tuple(style.shape)} must have the same "
            "batch and channels"
        )
    if not 0 <= weight <= 1:
        raise ValueError(f"the weight of the style must be from 0 to 1, got {weight}")
    wide = content if content.dtype.itemsize > 2 else content.float()
    mean, deviation = _statistics(wide)
    style_mean, style_deviation = _statistics(style.to(wide.dtype))
    # Rounding leaves a constant channel a deviation that is not quite 0; scaled, it would be noise.
    varied = deviation > 1e-6 * (1 + mean.abs())
    scale = (style_deviation / deviation.where(varied, 1)).where(varied, 0)
    styled = (wide - mean) * scale + style_mean
    return wide.lerp(styled, weight).to(content.dtype)


def _statistics(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel of feature maps, each [b, C, 1, 1]."""
    return maps.mean((2, 3), keepdim=True), maps.std((2, 3), keepdim=True, correction=0)


def has_padding(token_ids: Tensor, eos: int) -> Tensor:
    """Mask [b] of the prompts that have padding positions after their end token.

    Args:
        token_ids: [b, T].
        eos: the token that ends a text.

    Returns:
        [b] of bool. A prompt without an end was cut off and fills all positions.
    """
    return (token_ids[:, :-1] == eos).any(dim=1)


def inject(prompt: Tensor, token_ids: Tensor, image: Tensor, eos: int) -> Tensor:
    """Replace the padding of prompt embeddings by the CLIP embedding of an image.

    CLIP's tokenizer fills up with the end token itself: only its first one ends the text. A prompt
    that fills all positions comes back as it is; `has_padding` tells which do.

    Args:
        prompt: [b, T, W] output of the text encoder.
        token_ids: token ids that the text encoder has read [b, T].
        image: [b, W] projected embedding of the real image, not normalised.
        eos: the token that ends a text.

    Returns:
        [b, T, W] of the prompt's type.

    Raises:
        ValueError: the shapes do not fit together.
    """
    batch, length, width = prompt.shape
    if token_ids.shape != (batch, length) or image.shape != (batch, width):
        raise ValueError(
            f"a prompt of {tuple(prompt.shape)} needs token ids of {(batch, length)} and an image "
            f"of {(batch, width)}, got {tuple(token_ids.shape)} and {tuple(image.shape)}"
        )
    ends = (token_ids == eos).int()
    behind = ends.cumsum(dim=1) - ends > 0  # an end stands before, not at, the position
    return prompt.where(~behind[..., None], image.to(prompt.dtype)[:, None])


def encoder() -> Sequential:
    """Layers of VGG-19 from pixels to the features relu4_1, with untrained weights."""
    return Sequential(
        Conv2d(3, 3, 1), *_convolution_layers(3, _ENCODER, partial(MaxPool2d, 2, ceil_mode=True))
    )


def decoder() -> Sequential:
    """Decoder network from VGG-19's features relu4_1 to pixels, with untrained weights."""
    layers = _convolution_layers(512, _DECODER, partial(UpsamplingNearest2d, scale_factor=2))
    return Sequential(*layers[:-1])  # pixels are no features


def _convolution_layers(
    channels: int, blocks: Sequence[Sequence[int]], resample: Callable[[], Module]
) -> list[Module]:
    """Layers of several convolution blocks, with a resampling layer between two blocks."""
    layers: list[Module] = []
    for number, widths in enumerate(blocks):
        if number:
            layers.append(resample())
        for width in widths:
            layers += [ReflectionPad2d(1), Conv2d(channels, width, 3), ReLU()]
            channels = width
    return layers


def load(layers: Sequential, path: Path, key: str) -> Sequential:
    """Load the state dict of a file (.safetensors, .pth or .pt) into layers.

    Layers that the file has behind these, as a whole VGG does, are not read.

    Raises:
        SettingsError: the file cannot be read or does not fit.
    """
    if not path.is_file():
        raise SettingsError(f"{key}: there is no file '{path}'")
    try:
        state = _read_weights(path)
        wanted = layers.state_dict()
        layers.load_state_dict({name: state[name] for name in wanted})
    except Exception as error:
        raise SettingsError(
            f"{key}: expected the state dict of {len(layers)} layers as data/images/style.py lists "
            f"them, '{path}' does not hold it ({type(error).__name__}: {error})"
        ) from error
    return layers.eval()


def _read_weights(path: Path) -> dict[str, Tensor]:
    """Read the state dict of a safetensors or PyTorch file."""
    if path.suffix == ".safetensors":
        return load_file(path)
    check_weights_archive(path)
    state: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return state


def restyled(
    content: Tensor, style: Tensor, weight: float, encode: Module, decode: Module
) -> Tensor:
    """Images [b, 3, H, W] with the content of one batch and the style of another, by AdaIN.

    At weight 0 the content has still gone through encoder and decoder, which blurs it a little.

    Args:
        content: pixels of the content image. Height and width are multiples of 8, at least 16.
        style: pixels, of any size.
        weight: 0 leaves the content's statistics, 1 gives the style's.
        encode: function that encodes images, see `encoder`.
        decode: function that decodes features, see `decoder`.
    """
    pixels: Tensor = decode(adain(encode(content), encode(style), weight))
    return pixels
