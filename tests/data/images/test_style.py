"""AdaIN: channel statistics of the style on the content, mixed in by weight."""

import pytest
import torch
from torch import Tensor

from compo_pipeline.data.images.style import adain


def maps(seed: int, height: int = 6, width: int = 5) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    offset, spread = torch.randn(2, 2, 3, 1, 1, generator=draw)
    return torch.randn(2, 3, height, width, generator=draw) * (1 + spread.abs()) + 3 * offset


def statistics(values: Tensor) -> tuple[Tensor, Tensor]:
    flat = values.double().flatten(2)
    mean = flat.mean(-1)
    return mean, ((flat - mean[..., None]) ** 2).mean(-1).sqrt()


def test_at_full_weight_the_statistics_are_the_styles() -> None:
    styled = adain(maps(0), style := maps(1, 9, 4), 1.0)
    for got, expected in zip(statistics(styled), statistics(style), strict=True):
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


def test_what_is_where_stays_the_contents() -> None:
    content = maps(0)
    styled = adain(content, maps(1), 1.0)
    flat, before = styled.flatten(2), content.flatten(2)
    for channel, original in zip(flat.flatten(0, 1), before.flatten(0, 1), strict=True):
        together = torch.corrcoef(torch.stack([channel, original]))[0, 1]
        assert together == pytest.approx(1, abs=1e-5)


def test_weights_between_mix_linearly() -> None:
    content, style = maps(0), maps(1)
    whole = adain(content, style, 1.0)
    torch.testing.assert_close(adain(content, style, 0.3), 0.7 * content + 0.3 * whole)
    torch.testing.assert_close(adain(content, style), (content + whole) / 2)


@pytest.mark.parametrize("value", [0.0, 0.1, 1000.1])
def test_a_constant_channel_takes_the_styles_mean(value: float) -> None:
    content = maps(0)
    content[:, 1] = value
    style = maps(1)
    styled = adain(content, style, 1.0)
    assert styled.isfinite().all()
    expected = style[:, 1].mean((1, 2), keepdim=True).expand(2, 6, 5)
    torch.testing.assert_close(styled[:, 1], expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_contents_type_is_kept_and_statistics_are_taken_wider(dtype: torch.dtype) -> None:
    content, style = maps(0).to(dtype), maps(1)
    styled = adain(content, style, 1.0)
    assert styled.dtype == dtype
    expected = adain(content.double(), style.double(), 1.0)
    torch.testing.assert_close(styled, expected.to(dtype), atol=1e-6, rtol=1e-2)
