"""Readers of sources, one module per format.

They yield records without cleaning them.

A record that cannot be read is yielded as rejected, with the reason. A new reader is a module with
the functions of `record.Reader`, and one name in `READERS`; an installed package adds one by an
entry point of the group `compo_pipeline.readers`.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any

from compo_pipeline.core import archives
from compo_pipeline.core.plugins import Registry
from compo_pipeline.core.records import Rejected
from compo_pipeline.core.removed import replacement
from compo_pipeline.core.settings import PlainError, SettingsError, nearest
from compo_pipeline.core.untrusted import listed
from compo_pipeline.data.readers import auto, table
from compo_pipeline.data.readers.auto import identified
from compo_pipeline.data.readers.joined import caption_tables, joined
from compo_pipeline.data.readers.record import (
    RawCaption,
    Reader,
    SourceError,
    by_share,
)
from compo_pipeline.data.settings import DataSettings, SourceSettings

READERS: Registry[Reader] = Registry(
    "compo_pipeline.readers",
    {
        **{
            name: f"{__name__}.{name}"
            for name in ("coco_captions", "table", "folder", "webdataset")
        },
        **dict.fromkeys(("img2dataset", "image_parquet"), f"{__name__}.parquet_shards"),
        "cogvlm_laion": f"{__name__}.published:COGVLM_LAION",
        "neg_clip": f"{__name__}.published:NEG_CLIP",
    },
)
"""Readers by data.format."""

_WITH_KEYS = (
    "img2dataset",
    "webdataset",
    "image_parquet",
)  # whose records `data.captions` can be joined to
# Whose files may have a column of splits, and which are divided by their readers for that reason.
_DIVIDED = ("table", "neg_clip")

# A key of `data` that a source has too.
_KEY = re.compile(rf"(?<![\w/.])data\.({'|'.join(each.name for each in fields(SourceSettings))})\b")


def reader(data: DataSettings) -> Reader:
    """Reader of the configured data format.

    Raises an error for an unknown format.

    Raises:
        SettingsError: there is none of that name.
    """
    if data.format not in READERS:
        raise SettingsError(
            f"data.format: unknown format '{data.format}'{nearest(data.format, READERS)} (known: "
            f"{', '.join((auto.AUTO, *READERS))}){replacement(f'data.format={data.format}')}"
        )
    if data.captions.file is not None and data.format not in _WITH_KEYS:
        raise SettingsError(
            f"data.captions.file: images of the format '{data.format}' have their captions beside "
            f"them; expected null, or data.format one of {', '.join(_WITH_KEYS)}"
        )
    return READERS[data.format]


def read(
    data: DataSettings, report: dict[str, Any] | None = None
) -> Iterator[RawCaption | Rejected]:
    """Yield all records of a single source, split by split, in the order of its files.

    Args:
        data: data of one source.
        report: receives the counts of the join with `data.captions`, once all records are read.

    Raises:
        SourceError: a split cannot be read, or has no record.
    """
    data = identified(data)
    reader(data)
    records = chain.from_iterable(_split_records(data, split) for split in data.splits)
    if data.captions.file is None:
        yield from records
        table.parsed_json.cache_clear()
        return
    yield from joined(records, data, {} if report is None else report)


def _split_records(data: DataSettings, split: str) -> Iterator[RawCaption | Rejected]:
    """Yield the records of a split, which needs at least one in files of its own.

    Paths of images are relative to the source's root. A source that serves several splits is
    divided by `data.shares`, if it has no column of splits.
    """
    source = data.splits[split]
    with _naming_split(split):
        found = reader(data).read(data, split, source)
        records: Iterator[RawCaption | Rejected]
        records = (_with_own_path(data.root, each) for each in found)
        if data.format not in _DIVIDED:
            records = by_share(data, split, source, records)
        if (first := next(records, None)) is not None:
            yield first
            yield from records
        elif len(data.sharing(source)) == 1:
            files = reader(data).caption_files(data, source)
            raise SourceError(f"{listed([*map(str, files)]) or data.root / source} holds no record")


@contextmanager
def _naming_split(split: str) -> Iterator[None]:
    """Context manager: an error about a file, of one line, names the key of its split."""
    try:
        yield
    except ValueError as error:
        raise SourceError(f"data.splits.{split}: {error}") from error


def _with_own_path(root: Path, record: RawCaption | Rejected) -> RawCaption | Rejected:
    """The record, with its image's path as the folder or archive spells it, where it is there.

    Absolute paths below the root become relative. macOS decomposes accents in the names of files.
    """
    image = record.image
    if isinstance(record, Rejected) or (image.isascii() and not image.startswith("/")):
        return record
    own = image
    if image.startswith("/"):
        below = (os.path.relpath(image, folder) for folder in (root.absolute(), root.resolve()))
        own = next((each for each in below if not each.startswith("..")), image)
    forms = (own, *(unicodedata.normalize(form, own) for form in ("NFC", "NFD")))
    own = next((form for form in forms if archives.is_there(root, form)), own)
    return replace(record, image=own, image_id=record.image_id.replace(image, own))


@dataclass(frozen=True)
class Records:
    """Re-iterable records of a source, read again from its files at each iteration.

    Those of one of several sources have its name in their ids, and its folder in their paths.
    """

    data: DataSettings
    """Data of the source alone."""
    name: str = ""
    """Name of one of several sources."""
    folder: str = "."
    """Folder of the source, seen from that of all sources."""
    joined: dict[str, Any] = field(default_factory=dict, compare=False)
    """Counts of the join with `data.captions`, after all records were read."""

    def __iter__(self) -> Iterator[RawCaption | Rejected]:
        with naming_keys_of(self.name):
            records = read(self.data, self.joined)
            yield from map(self._of_source, records) if self.name else records

    def _of_source(self, record: RawCaption | Rejected) -> RawCaption | Rejected:
        image = record.image
        # A path that leads out of the source's root leads out of `data.root` as it is.
        if image and not os.path.normpath(image).startswith(("..", "/")):
            image = (PurePosixPath(self.folder) / image).as_posix()
        own = replace(record, sample_id=f"{self.name}/{record.sample_id}", image=image)
        if isinstance(own, Rejected):
            return own
        return replace(own, image_id=f"{self.name}/{own.image_id}", source=self.name)


def records_of(data: DataSettings) -> dict[str, Records]:
    """Mapping from source name to the records of the source."""
    return {
        name: Records(part, name if data.sources else "", os.path.relpath(part.root, data.root))
        for name, part in data.parts.items()
    }


def locate(data: DataSettings) -> dict[str, Any]:
    """Find the files of all sources.

    Returns:
        root, the caption files of each split, and of a single source its format.

    Raises:
        SourceError: something is missing; the message names the YAML key to change.
        SettingsError: there is no such format.
    """
    splits: dict[str, list[str]] = {split: [] for split in data.split_names}
    kind = ""
    for name, part in data.parts.items():
        with naming_keys_of(name if data.sources else ""):
            kind, found = locate_source(part)
        for split, files in found.items():
            splits[split] += [os.path.relpath(part.root / file, data.root) for file in files]
    return {"root": str(data.root), "splits": splits, "format": "" if data.sources else kind}


@contextmanager
def naming_keys_of(source: str) -> Iterator[None]:
    """Context manager: errors name keys `data.<key>` as those of one of several sources."""
    try:
        yield
    except PlainError as error:
        if not source:
            raise
        raise SourceError(_KEY.sub(rf"data.sources.{source}.\1", error.message)) from error


def locate_source(data: DataSettings) -> tuple[str, dict[str, list[str]]]:
    """Format of one source, and the caption files of each split, below its root.

    Raises the errors that `locate` raises.
    """
    data = identified(data)
    chosen = reader(data)
    if not data.root.is_dir():
        raise SourceError(
            f"data.root: there is no folder '{data.root}' (seen from {Path.cwd()}); "
            "set data.root to the folder that holds captions and images "
            "(docs/how-to/your-data.md says where published data are from)"
        )
    if not data.splits:
        raise SourceError("data.splits is empty: name at least a split for training")
    tables = caption_tables(data)
    splits = {}
    for split, source in data.splits.items():
        with _naming_split(split):
            files = chosen.caption_files(data, source)
        splits[split] = [str(path.relative_to(data.root)) for path in (*files, *tables)]
    return data.format, splits
