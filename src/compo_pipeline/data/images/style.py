"""Adaptive instance normalisation: an image's content under another one's channel statistics.

Source: SPARCL, Sec. 3, with Huang and Belongie 2017, Eq. 8: content synthetic, style real.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


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
