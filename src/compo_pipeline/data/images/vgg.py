"""An image in another one's style by VGG's features: encoder, AdaIN, decoder.

Source: Huang and Belongie 2017, Sec. 5: VGG-19 up to relu4_1, and a decoder that mirrors it. The
weights are the user's own, as state dicts of the two sequences below, layers counted from 0, as the
PyTorch ports of the paper keep them. The encoder's first convolution, 1 x 1, fits the colours to
VGG.

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
from compo_pipeline.data.images.style import adain

# Channels of the convolutions between two changes of the resolution.
_ENCODER = ((64, 64), (128, 128), (256, 256, 256, 256), (512,))
_DECODER = ((256,), (256, 256, 256, 128), (128, 64), (64, 3))


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
            f"{key}: expected the state dict of {len(layers)} layers as data/images/vgg.py lists "
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
