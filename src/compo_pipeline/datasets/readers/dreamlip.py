"""DreamLIP's captions of CC3M, CC12M and YFCC: published as CSV or parquet, without images.

The column `Image Path` holds each image's address, and seven columns hold a caption each, the
alternative web caption `raw_caption` and a short and a long one by each of three models. The
caption is `shortLLA_captions`, on which C2LIP trains; `data.columns.caption` names another.

Images fetched with img2dataset (`--url_col "Image Path" --output_format files`) are found by
their address in its tables below `data.images`. Its tables, or the files beside its images,
serve in the place of the published file where the captions were carried along as additional
columns. Where `Image Path` was rewritten to paths, these start from `data.images`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from compo_pipeline.datasets.readers import img2dataset, table
from compo_pipeline.datasets.readers.record import (
    NOT_DOWNLOADED,
    RawCaption,
    Reader,
    SourceError,
    by_share,
    rejected,
    source_files,
)
from compo_pipeline.datasets.settings import Columns, DataSettings
from compo_pipeline.storage.records import Rejected

_CAPTION = "shortLLA_captions"
_IMAGE = "Image Path"
_ADDRESS = "url"
_SHARDS = "[0-9]*.parquet"


def caption_files(data: DataSettings, source: str) -> list[Path]:
    """Paths of the files with the split's captions."""
    return _fitting_reader(data, source).caption_files(data, source)


def read(data: DataSettings, split: str, source: str) -> Iterator[RawCaption | Rejected]:
    """Yield a caption record per row of the split's files, with its downloaded image's path."""
    if _fitting_reader(data, source) is img2dataset:
        yield from by_share(data, split, source, img2dataset.read(data, split, source, _CAPTION))
        return
    downloads: _Downloads | None = None
    for record in table.read(_named(data), split, source):
        if not isinstance(record, RawCaption):
            yield record
        elif "://" not in record.image:
            yield _with_image((Path(data.images) / record.image).as_posix(), record)
        else:
            downloads = downloads or _Downloads(data)
            yield downloads.record(record)


def _named(data: DataSettings) -> DataSettings:
    """Settings with DreamLIP's columns; image paths are as the file has them."""
    given = data.columns
    columns = replace(
        given,
        image=given.image or _IMAGE,
        caption=None if given.sentences else given.caption or _CAPTION,
    )
    return replace(data, images="", columns=columns)


def _fitting_reader(data: DataSettings, source: str) -> Reader:
    """Reader for the split's files: the img2dataset reader, or the reader of plain tables."""
    first = next(iter(source_files(data, source)), None)
    if first is not None and first.suffix == ".parquet":
        with table.parquet_file(first) as file:
            return img2dataset if "key" in file.schema_arrow.names else table
    return img2dataset if first is not None and first.suffix == ".json" else table


def _with_image(image: str, record: RawCaption) -> RawCaption:
    """Copy of a caption record with another image path."""
    return replace(record, image=image, image_id=f"{record.split}-{image}")


class _Downloads:
    """Results of img2dataset's downloads, by image URL: the image's path, or the failure."""

    def __init__(self, data: DataSettings) -> None:
        """Read its tables."""
        self.tables = (Path(data.images) / _SHARDS).as_posix()
        if not source_files(data, self.tables):
            raise SourceError(
                f"'{data.columns.image or _IMAGE}' holds addresses, and no table of img2dataset "
                f"matches '{self.tables}' below {data.root}: set data.images to the folder that "
                "holds 00000.parquet, 00001.parquet, ... or write paths in the place of addresses"
            )
        self.images: dict[str, str] = {}
        self.failures: dict[str, str] = {}
        # The address serves as caption and id, which a record has even where the download failed.
        named = replace(data, images="", columns=Columns(id=_ADDRESS, caption=_ADDRESS))
        for row in img2dataset.read(named, "", self.tables):
            address = row.sample_id.removeprefix("-")
            if isinstance(row, RawCaption):
                self.images[address] = row.image
            else:
                self.failures[address] = row.detail

    def record(self, record: RawCaption) -> RawCaption | Rejected:
        """A caption record with its image URL replaced by the downloaded file, or its rejection."""
        address = record.image
        if address in self.images:
            return _with_image(self.images[address], record)
        reason = self.failures.get(address, f"no row of {self.tables} has this address")
        return rejected(record.sample_id, "", f"{reason}: {address}", NOT_DOWNLOADED)
