"""Settings of the YAML key `attention`."""

from __future__ import annotations

from compo_pipeline.core.settings import settings


@settings
class AttentionSettings:
    """Settings of the attention analysis: images and phrases."""

    images: str | None = None
    """An image, or a folder of your own images. Null takes images of `split` with the phrases of
    their captions."""
    phrases: str | None = None
    """Phrases for your own images, separated by ";". Every phrase is used with every image."""
    split: str = "test"
    """The dataset's split whose captions are used."""

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
