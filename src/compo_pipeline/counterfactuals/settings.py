"""Settings of the counterfactuals pipeline (parameters_counterfactuals.yml)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

WriterName = Literal["rules", "endpoint", "transformers", "scenes"]
MakerName = Literal["diffusion", "scenes"]


@dataclass(frozen=True)
class CounterfactualSettings:
    """Which captions are edited, by what, and what is made of the edits.

    Attributes:
        sentences: how many sentences of each row, from the first on; null for all. Where every
            caption of an image has a row of its own (COCO), the first is its own.
        writer: what edits captions; its settings stand under its name.
        maker: what makes images of the edits, likewise; null for none.
        seed: of every image; writers and makers have seeds of their own where they draw.
        format: of image files: JPEG of quality 92, or PNG.
        tolerated_share: the run fails when more than this share of the negative edits failed, or
            of the positive ones.
        retry: ask again for what failed in earlier runs.
        rules: settings of the writer `rules`.
        endpoint: of the writer `endpoint`.
        transformers: of the writer `transformers`.
        diffusion: of the maker `diffusion`.
        scenes: of the writer and maker `scenes`.
    """

    sentences: int | None = 1
    writer: WriterName = "rules"
    maker: MakerName | None = None
    seed: int = 0
    format: Literal["jpeg", "png"] = "jpeg"
    tolerated_share: float = 0.5
    retry: bool = False
    rules: Mapping[str, Any] = field(default_factory=dict)
    endpoint: Mapping[str, Any] = field(default_factory=dict)
    transformers: Mapping[str, Any] = field(default_factory=dict)
    diffusion: Mapping[str, Any] = field(default_factory=dict)
    scenes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Something to edit, images that can be made of it, and a share."""
        if self.maker == "scenes" and self.writer != "scenes":
            raise ValueError(
                f"maker: scenes draws what the writer scenes wrote, got the writer {self.writer}"
            )
        if self.sentences is not None and self.sentences < 1:
            raise ValueError(f"sentences: expected 1 at least, or null, got {self.sentences}")
        if not 0 <= self.tolerated_share <= 1:
            raise ValueError(f"tolerated_share: expected 0 to 1, got {self.tolerated_share}")
