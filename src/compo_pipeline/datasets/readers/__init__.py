"""Readers of sources, one module per format; they yield records without cleaning them.

A record that cannot be read is yielded as rejected, with the reason. A new reader is a module with
the functions of `record.Reader`, and one name in `READERS`; an installed package adds one by an
entry point of the group `compo_pipeline.readers`.
"""

from __future__ import annotations

import logging
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain, permutations
from pathlib import Path, PurePosixPath
from typing import Any

from compo_pipeline.configuration.plugins import Registry
from compo_pipeline.configuration.settings import PlainError, SettingsError, nearest
from compo_pipeline.datasets.readers import auto, table
from compo_pipeline.datasets.readers.auto import identified
from compo_pipeline.datasets.readers.joined import CaptionJoin, caption_tables
from compo_pipeline.datasets.readers.record import (
    RawCaption,
    Reader,
    SourceError,
    by_share,
    named_split,
)
from compo_pipeline.datasets.settings import DataSettings, SourceSettings
from compo_pipeline.storage import archives
from compo_pipeline.storage.records import Rejected
from compo_pipeline.storage.untrusted import listed, path_below

READERS: Registry[Reader] = Registry(
    "compo_pipeline.readers",
    {
        name: f"{__name__}.{name}"
        for name in (
            "coco_captions",
            "table",
            "pixelprose",
            "cogvlm_laion",
            "neg_clip",
            "img2dataset",
            "cc3m_coca",
            "dreamlip",
            "webdataset",
            "image_parquet",
            "folder",
        )
    },
)
"""Readers by data.format."""

_WITH_KEYS = ("webdataset", "image_parquet")  # whose records `data.captions` can be joined to
# Whose files may have a column of splits, and which are divided by their readers for that reason.
_DIVIDED = ("table", "pixelprose", "neg_clip", "dreamlip")

# A key of `data` that a source has too.
_KEY = re.compile(rf"(?<![\w/.])data\.({'|'.join(each.name for each in fields(SourceSettings))})\b")
_VALUES = 8  # of a column of splits, in a message

log = logging.getLogger(__name__)


def reader(data: DataSettings) -> Reader:
    """Reader of the configured data format; raise an error for an unknown format.

    Raises:
        SettingsError: there is none of that name.
    """
    if data.format not in READERS:
        raise SettingsError(
            f"data.format: unknown format '{data.format}'{nearest(data.format, READERS)} "
            f"(known: {', '.join((auto.AUTO, *READERS))})"
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
        data: of one source.
        report: receives what was joined of `data.captions`, once all records are read.
    """
    data = identified(data)
    reader(data)
    records = chain.from_iterable(split_records(data, split) for split in data.splits)
    if data.captions.file is None:
        yield from records
        table.parsed_json.cache_clear()
        return
    join = CaptionJoin(data)
    yield from join.captioned(records)
    if report is not None:
        report.update(join.report())


def split_records(data: DataSettings, split: str) -> Iterator[RawCaption | Rejected]:
    """Yield the records of one split, of one source whose format is not `auto`.

    Paths of images are relative to the source's root. A source that serves several splits is
    divided by `data.shares`, if it has no column of splits.
    """
    source = data.splits[split]
    records = (_with_own_path(data.root, each) for each in reader(data).read(data, split, source))
    return records if data.format in _DIVIDED else by_share(data, split, source, records)


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


def read_source(
    data: DataSettings, name: str, report: dict[str, Any] | None = None
) -> Iterator[RawCaption | Rejected]:
    """Yield all records of one of several sources, with its name in ids and folder in paths."""
    part = data.parts[name]
    folder = os.path.relpath(part.root, data.root)
    records = read(part, report)
    while True:
        try:
            record = next(records, None)
        except SourceError as error:
            raise SourceError(rename_source_keys(error.message, name)) from error
        if record is None:
            return
        image = record.image
        # A path that leads out of the source's root leads out of `data.root` as it is.
        if image and not os.path.normpath(image).startswith(("..", "/")):
            image = (PurePosixPath(folder) / image).as_posix()
        sample_id = f"{name}/{record.sample_id}"
        if isinstance(record, Rejected):
            yield replace(record, sample_id=sample_id, image=image)
        else:
            image_id = f"{name}/{record.image_id}"
            yield replace(record, sample_id=sample_id, image_id=image_id, image=image, source=name)


@dataclass(frozen=True)
class Records:
    """Re-iterable records of a source, which are read anew from its files at each iteration."""

    data: DataSettings
    name: str | None = None
    joined: dict[str, Any] = field(default_factory=dict, compare=False)
    """What was joined of `data.captions`, after a reading of all."""

    def __iter__(self) -> Iterator[RawCaption | Rejected]:
        if self.name is None:
            return read(self.data, self.joined)
        return read_source(self.data, self.name, self.joined)


def records_of(data: DataSettings) -> dict[str, Records]:
    """Mapping from source name to the records of the source."""
    if not data.sources:
        return {data.format: Records(data)}
    return {name: Records(data, name) for name in data.sources}


def locate(data: DataSettings) -> dict[str, Any]:
    """Find the files of all sources, check that they are complete, and count their records.

    Returns:
        format, root, and per split its annotation files, image folder, and numbers of records and
        image files; of several sources root, `sources`, which has all that of each, and per split
        the annotation files and the number of records of all.

    Raises:
        SourceError: something is missing or empty; the message names the YAML key to change.
        SettingsError: there is no such format.
    """
    if not data.sources:
        return _locate_source(data)
    found = {}
    for name, part in data.parts.items():
        try:
            found[name] = _locate_source(part)
        except SourceError as error:
            raise SourceError(rename_source_keys(error.message, name)) from error
    splits: dict[str, Any] = {
        split: {"annotations": [], "records": 0} for split in data.split_names
    }
    for name, each in found.items():
        folder = PurePosixPath(os.path.relpath(data.parts[name].root, data.root))
        for split, own in each["splits"].items():
            splits[split]["annotations"] += [str(folder / file) for file in own["annotations"]]
            splits[split]["records"] += own["records"]
    return {"root": str(data.root), "splits": splits, "sources": found}


def rename_source_keys(message: str, name: str) -> str:
    """An error message with keys `data.<key>` renamed to `data.sources.<name>.<key>`."""
    return _KEY.sub(rf"data.sources.{name}.\1", message)


def shared_files(data: DataSettings, trains: Sequence[str]) -> Iterator[str]:
    """Yield an error for each caption file that trains in one source and is held out in another.

    A file that both divide into the same splits is none of these: the rules of validation find
    images that are in several splits.

    Args:
        data: of several sources.
        trains: the splits that train.
    """
    found: dict[Path, dict[str, dict[str, str]]] = {}  # split to its key, by source
    for name, given in data.parts.items():
        try:
            part = identified(given)
        except PlainError:
            continue
        for split, source in part.splits.items():
            try:
                files = reader(part).caption_files(part, source)
            except PlainError:
                continue  # the check of the source says it
            for file in files:
                key = f"data.sources.{name}.splits.{split}"
                found.setdefault(file.resolve(), {}).setdefault(name, {})[split] = key
    for file, sources in found.items():
        for one, other in permutations(sources.values(), 2):
            held = [key for split, key in other.items() if split not in trains]
            own = [key for split, key in one.items() if split in trains]
            if own and held and one.keys() != other.keys():
                yield (
                    f"{held[0]}: {file} trains in another source ({own[0]}); expected files of "
                    "which no image trains, or the same splits of the file in both"
                )


def _locate_source(data: DataSettings) -> dict[str, Any]:
    """Find the files of one source by split, and count its records and images."""
    data = identified(data)
    chosen = reader(data)
    if not data.root.is_dir():
        raise SourceError(
            f"data.root: there is no folder '{data.root}' (seen from {Path.cwd()}); "
            "set data.root to the folder that holds annotations and images"
        )
    if not data.splits:
        raise SourceError("data.splits is empty: name at least a split for training")
    tables = caption_tables(data)
    splits: dict[str, Any] = {}
    files_in: dict[Path, int] = {}
    split_of: dict[Path, str] = {}
    for split, source in data.splits.items():
        try:
            annotations = chosen.caption_files(data, source)
            _refuse_overlap(data, split, annotations, split_of)
            records = _record_count(data, split, source)
        except SourceError as error:
            raise SourceError(f"data.splits.{split}: {error}") from error
        if not records:
            files = listed([*map(str, annotations)]) or chosen.image_folder(data, source)
            reason = _no_record_reason(data, split, source)
            raise SourceError(f"data.splits.{split}: {files} holds no record{reason}")
        folder = _image_folder(data, split, source)
        if folder not in files_in:
            files_in[folder] = _files_below(folder, split)
        splits[split] = {
            "annotations": [str(path.relative_to(data.root)) for path in (*annotations, *tables)],
            "records": records,
            "images": str(folder.relative_to(data.root)),
            "files": files_in[folder],
        }
    for source in dict.fromkeys(data.splits.values()):
        if len(shared := data.sharing(source)) > 1:
            counts = ", ".join(f"{splits[split]['records']} {split}" for split in shared)
            log.info("%s is divided: %s records.", data.root / source, counts)
            for column, values in _split_values(data, source).items():
                unknown = {name: n for name, n in values.items() if not named_split(name, shared)}
                if unknown:
                    text = "%s: records of no known split are bad; the column %s has %s."
                    log.warning(text, data.root / source, column, _listed(Counter(unknown)))
    table.parsed_json.cache_clear()
    return {"format": data.format, "root": str(data.root), "splits": splits}


def _refuse_overlap(
    data: DataSettings, split: str, files: Sequence[Path], split_of: dict[Path, str]
) -> None:
    """Raise an error for a file that another split names by another pattern or folder."""
    for file in files:
        other = split_of.setdefault(file, split)
        if data.splits[other] != data.splits[split]:
            raise SourceError(
                f"{file} is of the split {other} too (data.splits.{other}="
                f"{data.splits[other]}): name files of its own for each split, or the same in "
                "both, which a column of splits or data.shares divides"
            )


def _record_count(data: DataSettings, split: str, source: str) -> int:
    """Number of records of a split, counted by reading the file if several splits share it."""
    if len(data.sharing(source)) > 1:
        return sum(1 for _ in split_records(data, split))
    return reader(data).count(data, source)


def _no_record_reason(data: DataSettings, split: str, source: str) -> str:
    """Reason why a split has no record, as the end of a sentence; may be empty.

    Records that cannot be used are of the first split of their file.
    """
    first, *others = data.sharing(source)
    if not others:
        return ""
    if values := _split_values(data, source):
        column, counts = next(iter(values.items()))
        return (
            f" of this split: its column {column} has {_listed(counts)}, expected "
            f"{', '.join(data.sharing(source))} (validation, valid and dev are val, restval is "
            "train); another column is named in data.columns.split, and "
            f"data.splits.{split}=null leaves the split out"
        )
    records = list(split_records(data, first))
    bad = [record for record in records if isinstance(record, Rejected)]
    if len(bad) == len(records) > 0:
        return f" that can be used; {len(bad)} cannot, such as {bad[0].sample_id}: {bad[0].detail}"
    remedy = (
        f"raise data.shares.{split}, or name the column that says each record's split in "
        f"data.columns.split; data.splits.{split}=null leaves the split out"
    )
    return f" of this split; {remedy}" if records else ""


def _split_values(data: DataSettings, source: str) -> dict[str, Counter[str]]:
    """Values of a table's column of splits, by the name of the column; empty without one."""
    return table.split_values(data, source) if data.format == "table" else {}


def _listed(counts: Counter[str]) -> str:
    """Values with their numbers, the most frequent ones first."""
    more = f" and {len(counts) - _VALUES} more" if len(counts) > _VALUES else ""
    return ", ".join(f"{name} ({n})" for name, n in counts.most_common(_VALUES)) + more


def _image_folder(data: DataSettings, split: str, source: str) -> Path:
    """Folder of a split's images, as a path below the data's root."""
    folder = reader(data).image_folder(data, source)
    try:
        return path_below(data.root, os.path.relpath(folder, data.root), follow_symlinks=True)
    except ValueError as error:
        raise SourceError(
            f"data.splits.{split}: the folder of images: {error}; change data.splits, or "
            "data.images for a table"
        ) from error


def _files_below(folder: Path, split: str) -> int:
    """Number of files below a folder of images; raise an error if there is none."""
    if not folder.is_dir():
        raise SourceError(
            f"data.splits.{split}: there is no folder of images '{folder}'; "
            "change data.splits, or data.images for a table"
        )
    files = sum(len(names) for _, _, names in os.walk(folder))
    if not files:
        raise SourceError(f"data.splits.{split}: the folder of images '{folder}' is empty")
    return files
