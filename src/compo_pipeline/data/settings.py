"""Settings of the data (`data` in parameters.yml): location, format, splits, sources."""

from __future__ import annotations

import os
import re
from dataclasses import field, fields, replace
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

from pydantic import PositiveFloat, PositiveInt, ValidationError

from compo_pipeline.core.remote import cache_and_url
from compo_pipeline.core.settings import Open, settings
from compo_pipeline.data.generators import GENERATORS

# A source's name is a folder, a value of the column `source` and a part of a dotted key.
_SOURCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")


@settings
class Columns:
    """Names of a source table's columns, or null: the default of the format."""

    id: str | None = None
    """Column with a unique id. Null uses the record's number in its split."""
    image: str | None = None
    """Column with the image's path, or a pattern of columns such as `{key:.5}/{key}.jpg`. In tars,
    the ending of images, such as `input.jpg`."""
    caption: str | None = None
    """Column with the caption (one sentence or many), or with a list of captions of the image. In
    tars, the ending of captions, such as `outputs.txt`, or a field of the JSON."""
    sentences: str | None = None
    """Column with a list of sentences, in place of `caption`."""
    split: str | None = None
    """Column with the name of the record's split, if one file serves several splits. It may hold
    our names or usual ones, such as validation. Null is the column `split`, if the file has one."""

    def __post_init__(self) -> None:
        """Refuse two columns for the caption."""
        if self.caption and self.sentences:
            raise ValueError(
                f"caption ({self.caption}) and sentences ({self.sentences}) are both set: "
                "leave one null"
            )


@settings
class CaptionTable:
    """Settings of a separate table of captions, joined to a source's images by key or URL."""

    file: str | None = None
    """Table below the root, or a pattern of files: CSV, TSV, JSON lines, Parquet, or one text file
    per key, named after the key. Null: the captions are in the shards."""
    key: str = "key"
    """Column of the table that identifies the image, such as `url`."""
    image_key: str | None = None
    """Field of a sample's JSON, or column of the Parquet file, with the same value as `key`. Null
    is the name of the sample in a tar, or the column `__key__` or `key` of a Parquet file."""
    caption: str = "caption"
    """Column of the table with the caption."""


@settings
class SampleSettings:
    """Settings of a random sample of one split, drawn before images are measured."""

    rows: PositiveInt | None = None
    """Number of records. Null uses all."""
    seed: int = 0
    """Seed with which the records are drawn."""
    split: str = "train"
    """Split to sample. Other splits are used whole."""


@settings
class SourceSettings:
    """Settings of one of several data sources: its weight, and differences from `data`."""

    weight: PositiveFloat = 1.0
    """Share of an epoch's rows that this source gets, relative to the weights of the other
    sources."""
    root: str | None = None
    """Folder of the source, a path below `data.root`. Null is the source's name."""
    format: str | None = None
    """Format of the source. Null is `data.format`."""
    splits: Open[str] | None = None
    """Names of the splits in this project, each with its name in the source. Null is
    `data.splits`."""
    images: str | None = None
    """Folder below the source's root to which image paths of a table are relative. Null is
    `data.images`."""
    columns: Columns | None = None
    """Columns of the source's table. Null is `data.columns`."""
    captions: CaptionTable | None = None
    """Separate table with the source's captions. Null is `data.captions`."""
    shares: Open[PositiveFloat] | None = None
    """Relative sizes of the source's splits that share one file. Null is `data.shares`."""
    sample: SampleSettings | None = None
    """Random sample of one of the source's splits. Null samples it as `data.sample` says."""


@settings
class DataSettings:
    """Settings of the training data: location, format, splits, columns, samples, sources."""

    root: Path
    """Folder with annotations and images, or its URL on object storage."""
    format: str
    """A generator of data (scenes, which are rendered), or a reader: coco_captions, table, folder
    (images with texts beside them, or without captions), img2dataset, webdataset, image_parquet,
    cogvlm_laion or neg_clip (docs/how-to/your-data.md).
    auto: the one of coco_captions, table, folder, img2dataset, webdataset and image_parquet that
    fits the files."""
    splits: Open[str]
    """Names of the splits in this project, each with its name in the source, held-out ones last.
    Null removes a split of conf/base. COCO formats: the name in captions_<name>.json and of the
    image folder. Tables: a file, or a pattern of files, below the root. The format folder: a folder
    below the root. auto: any of these, or `.`, which recognises the splits."""
    images: str = ""
    """Folder below the root to which image paths of a table are relative."""
    columns: Columns = field(default_factory=Columns)
    """Columns of a table."""
    captions: CaptionTable = field(default_factory=CaptionTable)
    """Separate table with the captions, for the formats img2dataset, webdataset and
    image_parquet."""
    shares: Open[PositiveFloat] = field(default_factory=dict)
    """Relative sizes of splits that share one file or folder without a split column. A hash of an
    image's path decides its split, so images that you add do not move others."""
    follow_symlinks: bool = False
    """Whether caption files may be links to files outside the root. For images, set
    ingest.follow_symlinks."""
    captioned: bool | None = None
    """Whether every record must have a caption. Null requires one unless recaption.captioner writes
    captions."""
    sample: SampleSettings = field(default_factory=SampleSettings)
    """A random sample of one split instead of all of it."""
    sources: Open[SourceSettings] = field(default_factory=dict)
    """Several sources that train together, by name. Other keys of `data` are defaults for all
    sources (docs/how-to/your-data.md)."""
    epoch_rows: PositiveInt | None = None
    """Rows of an epoch over several sources. Null is the size of the largest source."""

    def __post_init__(self) -> None:
        """Refuse sources that cannot be told apart, and samples of splits that do not exist."""
        if self.sources:
            self._refuse_unfit_sources()
            return
        if self.epoch_rows is not None:
            raise ValueError(
                f"epoch_rows: {self.epoch_rows} rows are drawn from several sources, and "
                "data.sources has none; expected null (data.sample.rows takes fewer rows)"
            )
        if self.sample.rows is not None and self.sample.split not in self.splits:
            raise ValueError(
                f"sample.split: '{self.sample.split}' is none of {', '.join(self.splits)}"
            )

    def _refuse_unfit_sources(self) -> None:
        """Raise an error for invalid or contradicting names, folders or splits of sources."""
        for name, source in self.sources.items():
            if not _SOURCE.fullmatch(name):
                raise ValueError(
                    f"sources: '{name}' cannot name a source, which is a folder and a value of the "
                    "column `source`; expected at most 100 letters, digits, - and _, a letter or "
                    "digit first"
                )
            below = Path(os.path.relpath(self._root_of(name), self.root))
            if ".." in below.parts or "://" in (source.root or ""):
                raise ValueError(
                    f"sources.{name}.root: '{source.root}' is no path below data.root "
                    f"({self.root}); expected one, or null"
                )
        try:
            list(self.split_names)
        except CycleError as error:
            raise ValueError(
                f"sources: {' and '.join(dict.fromkeys(error.args[1]))} stand in contradicting "
                "orders in `splits`; expected one order in all sources, held-out splits last"
            ) from None

    def _root_of(self, name: str) -> Path:
        """Root folder of a source."""
        return Path(os.path.normpath(self.root / (self.sources[name].root or name)))

    @property
    def parts(self) -> dict[str, DataSettings]:
        """Mapping from source name to the settings of only that source.

        A single source is named by its format.
        """
        if not self.sources:
            return {self.format: self}
        return {name: self._settings_of_source(name) for name in self.sources}

    def _settings_of_source(self, name: str) -> DataSettings:
        """Settings of one source as if it were the only one."""
        source = self.sources[name]
        own = {each.name: getattr(source, each.name) for each in fields(source)}
        given = {key: value for key, value in own.items() if value is not None}
        del given["weight"]
        given |= {"root": self._root_of(name), "sources": {}, "epoch_rows": None}
        try:
            return replace(self, **given)
        except ValidationError as error:
            raise ValueError(f"sources.{name}.{error.errors()[0]['ctx']['error']}") from None

    @property
    def weights(self) -> dict[str, float]:
        """Sampling weight of each source by name, empty for a single source."""
        return {name: source.weight for name, source in self.sources.items()}

    @property
    def split_names(self) -> list[str]:
        """Names of the splits of all sources, training splits before held-out ones."""
        order: TopologicalSorter[str] = TopologicalSorter()
        for part in self.parts.values():
            for name in part.splits:
                order.add(name)
            for earlier, later in pairwise(part.splits):
                order.add(later, earlier)
        return list(order.static_order())

    @property
    def generator(self) -> DataSettings | None:
        """Settings of the source whose format has a data generator, or None without one."""
        return next((part for part in self.parts.values() if part.format in GENERATORS), None)

    @property
    def generated(self) -> DataSettings | None:
        """Settings of the generated source if it is on local disk, or None otherwise."""
        made = self.generator
        return made if made is not None and cache_and_url(made.root) is None else None

    @property
    def may_lack_captions(self) -> bool:
        """Whether records without a caption are accepted."""
        return self.captioned is False

    def sharing(self, source: str) -> list[str]:
        """Names of the splits that are read from the same file or folder of the source."""
        return [split for split, named in self.splits.items() if named == source]
