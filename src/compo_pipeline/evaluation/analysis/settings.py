"""Settings of the YAML keys `attention` and `wise_ft`."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, PositiveInt

from compo_pipeline.configuration.settings import Share, settings


@settings
class AttentionSettings:
    """Settings of the attention analysis: images and phrases, and how many are drawn."""

    images: str | None = None
    """An image or a folder of your own images; null takes images of `split` and the phrases
    of their captions."""
    phrases: str | None = None
    """Phrases for your own images, separated by ";"; every phrase is used with every image."""
    split: str = "test"
    """The dataset's split whose captions are used."""
    count: PositiveInt = 18
    """Number of phrases that are drawn, at random."""
    seed: int = 0
    """Seed of the random sample."""

    def __post_init__(self) -> None:
        """Check that there are images for the phrases and phrases for the images."""
        if (self.images is None) != (self.phrases is None):
            raise ValueError(
                'images and phrases: for your own images set both ("a red shirt; a grey horse")'
            )

    @property
    def topic(self) -> str:
        """Name of the analysis: the split, or `own` for the user's own images."""
        return self.split if self.images is None else "own"


def _check_rising(ratios: tuple[float, ...]) -> tuple[float, ...]:
    """Validator: return the ratios; refuse fewer than two, or ratios that do not rise."""
    if len(ratios) < 2 or sorted(set(ratios)) != list(ratios):
        raise ValueError(f"expected two or more rising shares, got {list(ratios)}")
    return ratios


@settings
class SweepSettings:
    """Settings of a WiSE-FT sweep: the ratios at which base and fine-tuned weights are mixed."""

    ratios: Annotated[tuple[Share, ...], AfterValidator(_check_rising)] = (
        *(0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
    )
    """Shares of the fine-tuned weights, rising from 0 (the base) to 1."""
