"""Settings of the data: where it lies and in which format (`data` in parameters.yml)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

SCENES = "scenes"
"""The format of data that is rendered by the run that reads it."""


@dataclass(frozen=True)
class Columns:
    """What the columns of a table mean; null leaves a format's own default.

    Args:
        id: holds a unique id; without it the record's number in its split is the id.
        image: holds the image's path; or a pattern of columns such as `{key:.5}/{key}.jpg`.
        caption: holds the caption, one sentence or many.
        sentences: holds a list of sentences, instead of `caption`.
        split: holds our name of the record's split, where one file serves several splits; null
            takes the column `split` where the file has one.
    """

    id: str | None = None
    image: str | None = None
    caption: str | None = None
    sentences: str | None = None
    split: str | None = None

    def __post_init__(self) -> None:
        """Refuse two homes of the caption."""
        if self.caption and self.sentences:
            raise ValueError(
                f"caption ({self.caption}) and sentences ({self.sentences}) are both set: "
                "leave one null"
            )


@dataclass(frozen=True)
class SampleSettings:
    """A random part of a split, drawn once, before anything is measured.

    Args:
        rows: how many of its records are taken; null takes all.
        seed: of the draw.
        split: the split it is drawn from; the others stay whole.
    """

    rows: int | None = None
    seed: int = 0
    split: str = "train"

    def __post_init__(self) -> None:
        """Refuse a sample of nothing."""
        if self.rows is not None and self.rows < 1:
            raise ValueError(f"rows: expected at least 1, or null for all, got {self.rows}")


@dataclass(frozen=True)
class DataSettings:
    """Where the data lies and how to read it.

    Args:
        root: folder under which annotations and images lie.
        format: one of the readers.
        splits: our names of the splits and the source's, those held out last; null takes a split
            of conf/base away. COCO formats: the name in captions_<name>.json and of the image
            folder. Tables: a file, or a pattern of files, below the root.
        images: folder below the root from which the image paths of a table start.
        columns: what a table's columns mean.
        shares: relative sizes of the splits that one file of a table serves without a column that
            says which; an image has the split that a hash of its path draws, and keeps it when
            others are added.
        shares_seed: of that hash.
        sample: a random part of one split in the place of all of it.
    """

    root: Path
    format: str
    splits: dict[str, str | None]
    images: str = ""
    columns: Columns = field(default_factory=Columns)
    shares: dict[str, float] = field(default_factory=dict)
    shares_seed: int = 0
    sample: SampleSettings = field(default_factory=SampleSettings)

    def __post_init__(self) -> None:
        """Refuse a sample of a split that is not there, and shares that are none."""
        for split, share in self.shares.items():
            if not (math.isfinite(share) and share > 0):
                raise ValueError(f"shares.{split}: expected more than 0, got {share}")
        if self.sample.rows is not None and self.sample.split not in self.sources:
            raise ValueError(
                f"sample.split: '{self.sample.split}' is none of {', '.join(self.sources)}"
            )

    @property
    def sources(self) -> dict[str, str]:
        """The source's name of each split that was not taken away."""
        return {split: source for split, source in self.splits.items() if source is not None}

    def sharing(self, source: str) -> list[str]:
        """Our names of the splits that a source serves."""
        return [split for split, named in self.sources.items() if named == source]
