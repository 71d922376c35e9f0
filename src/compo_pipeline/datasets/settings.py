"""Settings of the data: where it lies and in which format (`data` in parameters.yml)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Columns:
    """What the columns of a table mean; null leaves a format's own default.

    Args:
        id: holds a unique id; without it the record's number in its split is the id.
        image: holds the picture's path; or a pattern of columns such as `{key:.5}/{key}.jpg`.
        caption: holds the caption, one sentence or many.
        sentences: holds a list of sentences, instead of `caption`.
    """

    id: str | None = None
    image: str | None = None
    caption: str | None = None
    sentences: str | None = None

    def __post_init__(self) -> None:
        """Refuse two homes of the caption."""
        if self.caption and self.sentences:
            raise ValueError(
                f"caption ({self.caption}) and sentences ({self.sentences}) are both set: "
                "leave one null"
            )


@dataclass(frozen=True)
class DataSettings:
    """Where the data lies and how to read it.

    Args:
        root: folder under which annotations and pictures lie.
        format: one of the readers.
        splits: our names of the splits and the source's, those held out last; null takes a split
            of conf/base away. COCO formats: the name in captions_<name>.json and of the picture
            folder. Tables: a file, or a pattern of files, below the root.
        images: folder below the root from which the picture paths of a table start.
        columns: what a table's columns mean.
    """

    root: Path
    format: str
    splits: dict[str, str | None]
    images: str = ""
    columns: Columns = field(default_factory=Columns)

    @property
    def sources(self) -> dict[str, str]:
        """The source's name of each split that was not taken away."""
        return {split: source for split, source in self.splits.items() if source is not None}
