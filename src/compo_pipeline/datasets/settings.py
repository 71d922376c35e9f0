"""Settings of the data (`data` in parameters.yml): location, format, splits."""

from __future__ import annotations

import re
import string
from dataclasses import field
from pathlib import Path

from pydantic import PositiveFloat, PositiveInt

from compo_pipeline.configuration.settings import Open, settings
from compo_pipeline.datasets.generators import GENERATORS
from compo_pipeline.storage.remote import url_of

# Part of a field's format: a width or precision that is long, or that another column gives.
_UNBOUNDED = re.compile(r"\d{4}|\{")


@settings
class Columns:
    """Columns of a table; null: the format's own default."""

    id: str | None = None
    """Column with a unique id; without one, the record's number in its split is the id."""
    image: str | None = None
    """Column with the image's path, or a pattern of columns such as `{key:.5}/{key}.jpg`."""
    caption: str | None = None
    """Column with the caption, one sentence or many."""
    sentences: str | None = None
    """Column with a list of sentences, instead of `caption`."""
    split: str | None = None
    """Column with our name of the record's split, where one file serves several splits; null: the
    column `split` where the file has one."""

    def __post_init__(self) -> None:
        """Refuse two columns for the caption, and a pattern of which a short value makes a long
        name.
        """
        if self.caption and self.sentences:
            raise ValueError(
                f"caption ({self.caption}) and sentences ({self.sentences}) are both set: "
                "leave one null"
            )
        for _, name, spec, _ in string.Formatter().parse(self.image or ""):
            if _UNBOUNDED.search(spec or ""):
                raise ValueError(
                    f"image: '{{{name}:{spec}}}' has no fixed width of up to three digits; "
                    "expected a pattern such as {key:.5}/{key}.jpg"
                )


@settings
class SampleSettings:
    """A random sample of one split, drawn once, before images are measured."""

    rows: PositiveInt | None = None
    """Number of records; null: all."""
    seed: int = 0
    """Seed of the draw."""
    split: str = "train"
    """The split to sample; other splits are used whole."""


@settings
class DataSettings:
    """Location and format of the data."""

    root: Path
    """Folder with annotations and images, or its URL on object storage."""
    format: str
    """A generator of data (scenes, which are rendered), or a reader: coco_captions, table,
    pixelprose, cogvlm_laion, neg_clip, img2dataset, webdataset, cc3m_coca, dreamlip, or folder
    (images without captions; docs/your-data.md)."""
    splits: Open[str]
    """Our names of the splits and the source's, held-out ones last; null removes a split of
    conf/base. COCO formats: the name in captions_<name>.json and of the image folder. Tables: a
    file, or a pattern of files, below the root. Images without captions: a folder below the
    root."""
    images: str = ""
    """Folder below the root from which the image paths of a table start."""
    columns: Columns = field(default_factory=Columns)
    """Columns of a table."""
    shares: Open[PositiveFloat] = field(default_factory=dict)
    """Relative sizes of splits that share one file without a split column; the hash of an image's
    path determines its split, so added images do not move others."""
    shares_seed: int = 0
    """Seed of that hash."""
    follow_symlinks: bool = False
    """Whether caption files may be links to files outside the root; ingest.follow_symlinks is for
    images."""
    captioned: bool | None = None
    """Whether every record must have a caption; null: unless recaption.captioner writes them."""
    sample: SampleSettings = field(default_factory=SampleSettings)
    """A random sample of one split instead of all of it."""

    def __post_init__(self) -> None:
        """Refuse a sample of a split that does not exist."""
        if self.sample.rows is not None and self.sample.split not in self.splits:
            raise ValueError(
                f"sample.split: '{self.sample.split}' is none of {', '.join(self.splits)}"
            )

    @property
    def generated(self) -> bool:
        """Whether the raw pipeline makes the data, unless they are on object storage."""
        return self.format in GENERATORS and url_of(self.root) is None

    @property
    def may_lack_captions(self) -> bool:
        """Whether records without a caption are read."""
        return self.captioned is False

    def sharing(self, source: str) -> list[str]:
        """Our names of the splits that share a source."""
        return [split for split, named in self.splits.items() if named == source]
