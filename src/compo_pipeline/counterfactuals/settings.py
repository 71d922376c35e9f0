"""Settings of the counterfactuals pipeline (parameters_counterfactuals.yml)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

from pydantic import PositiveInt

from compo_pipeline.configuration import Share, settings

KEY = "counterfactuals"

CaptionEditorName = Literal["rules", "endpoint", "transformers", "scenes"]
ImageGeneratorName = Literal["diffusion", "scenes"]


@settings
class CounterfactualSettings:
    """Which captions are edited, and what edits them and generates images."""

    sentences: PositiveInt | None = 1
    """how many sentences of each row, from the first on; null for all. Where every caption of an
    image has a row of its own (COCO), the first is its own."""
    caption_editor: CaptionEditorName = "rules"
    """what edits captions; its settings are under its name."""
    image_generator: ImageGeneratorName | None = None
    """what generates images of the edits, likewise; null for none."""
    seed: int = 0
    """of every image; caption editors and image generators have further seeds of their own."""
    format: Literal["jpeg", "png"] = "jpeg"
    """of image files: JPEG of quality 92, or PNG."""
    tolerated_share: Share = 0.5
    """the run fails when more than this share of the negative edits failed, or of the positive
    ones."""
    retry: bool = False
    """try again what failed in earlier runs."""
    rules: Mapping[str, Any] = field(default_factory=dict)
    """settings of the caption editor `rules`."""
    endpoint: Mapping[str, Any] = field(default_factory=dict)
    """settings of the caption editor `endpoint`."""
    transformers: Mapping[str, Any] = field(default_factory=dict)
    """settings of the caption editor `transformers`."""
    diffusion: Mapping[str, Any] = field(default_factory=dict)
    """settings of the image generator `diffusion`."""
    scenes: Mapping[str, Any] = field(default_factory=dict)
    """settings of the caption editor and image generator `scenes`."""

    def __post_init__(self) -> None:
        """Only edited scenes can be rendered."""
        if self.image_generator == "scenes" and self.caption_editor != "scenes":
            raise ValueError(
                "image_generator: scenes renders what the caption editor scenes edited, got the "
                f"caption editor {self.caption_editor}"
            )
