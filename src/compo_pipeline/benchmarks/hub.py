"""Data sets of the Hugging Face hub: Parquet files, with the images inside or with their names.

The files of a split are `test-00000-of-00003.parquet` and so on or, as the hub converts other data
sets, `test/0000.parquet` and so on. They are in the data set's folder, in its folder `data`, or in
that of a configuration. A column of images has records {bytes, path}, or bytes; the images are read
in place (`core/archives.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from compo_pipeline.benchmarks.files import Record, read_content
from compo_pipeline.benchmarks.items import FILES
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.core.tables import parquet_file
from compo_pipeline.core.untrusted import holds_images

_PARQUET = ("*.parquet", "*/*.parquet", "*/*/*.parquet")
WITH_PARQUET = (*FILES, *_PARQUET)
"""Patterns of the annotation files of a benchmark that is read from the hub's Parquet too."""

_SPLIT = "test"
_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})(?:-[0-9a-f]+)?", re.ASCII)
_CONVERTED = re.compile(r"\d{4}", re.ASCII)

Columns = Mapping[str, tuple[str, ...]]
"""Names of fields, each with those that its column may have."""


def columns_of_same_names(fields: Iterable[str]) -> Columns:
    """Mapping from each field to its column, for fields that are named as their columns."""
    return {field: (field,) for field in fields}


class Rows(NamedTuple):
    """Rows of a data set's split as records, with the folder of their images.

    Records are numbered from 0 over all files. `inside` says whether the images are in the files;
    then that is the folder.

    `images` is the folder below which the images are, `inside` whether they are in the files.
    """

    records: list[Record]
    images: Path
    inside: bool


def parquet_files(root: Path) -> list[Path]:
    """Paths of the Parquet files in a data set's folder and its subfolders."""
    return sorted(file for pattern in _PARQUET for file in root.glob(pattern))


def files_by_name(root: Path, names: Mapping[str, str]) -> dict[str, list[Path]]:
    """Paths of Parquet files below one folder, grouped by the data set that they belong to.

    Args:
        root: folder of the benchmark's files.
        names: names by what the files, or a folder of theirs, may be called, in lower-case letters
            and digits.

    Raises:
        SettingsError: a file is of none of them, or of two.
    """
    found: dict[str, list[Path]] = {}
    for file in parquet_files(root):
        parts = (*file.relative_to(root).parent.parts, _parse_shard_name(file)[0])
        plain = (re.sub(r"[^a-z0-9]", "", part.lower()) for part in parts)
        own = {names[part] for part in plain if part in names}
        if len(own) != 1:
            expected = ", ".join(sorted(set(names.values())))
            raise SettingsError(f"{file}: expected in a folder that is named as one of: {expected}")
        found.setdefault(own.pop(), []).append(file)
    return found


def read_split(
    root: Path, files: Sequence[Path], images: Path, image_fields: Columns, text_fields: Columns
) -> Rows:
    """Read the rows of the split `test`, or of the only split, from a data set's Parquet files.

    Args:
        root: folder of the data set.
        files: files of the split.
        images: folder of the images that are not in the files.
        image_fields: columns that hold images, or names of images.
        text_fields: columns that hold texts.

    Raises:
        SettingsError: there are several other splits, a file of the split is missing or there
            twice, cannot be read, is empty, or has other columns.
    """
    records: list[Record] = []
    kinds = set()
    for file in _split_files(root, files):
        columns, inside = _find_columns(file, image_fields, text_fields)
        kinds.add(inside)
        name = file.relative_to(root)
        for number, row in enumerate(read_content(file)):
            content = row | {
                field: f"{name}/{column}/{number}"
                if inside and field in image_fields
                else row[column]
                for field, column in columns.items()
            }
            records.append(Record(f"{len(records)}", f"{file}, row {number}", content))
    if not records:
        raise SettingsError(f"{files[0]}: there is no row")
    if len(kinds) > 1:
        raise SettingsError(f"{root}: some files have images inside, others the names of images")
    inside = kinds.pop()
    return Rows(records, root if inside else images, inside)


def _split_files(root: Path, files: Sequence[Path]) -> list[Path]:
    """Paths of all Parquet files of the split, in order.

    Raises an error if one is missing.
    """
    splits: dict[str, list[tuple[int, int | None, Path]]] = {}
    for file in files:
        split, number, total = _parse_shard_name(file)
        splits.setdefault(split, []).append((number, total, file))
    if _SPLIT not in splits and len(splits) > 1:
        raise SettingsError(
            f"{root}: there are the splits {', '.join(sorted(splits))}; expected {_SPLIT}, or one"
        )
    there = sorted(splits.get(_SPLIT) or next(iter(splits.values())), key=itemgetter(0, 2))
    numbers, totals, paths = zip(*there, strict=True)
    count = max(total or 1 + numbers[-1] for total in totals)
    if numbers != tuple(range(count)) or len(set(totals)) > 1:
        raise SettingsError(
            f"{paths[0]}: the files of its split have the numbers "
            f"{', '.join(map(str, numbers))}, expected each from 0 to {count - 1} once"
        )
    return list(paths)


def _parse_shard_name(file: Path) -> tuple[str, int, int | None]:
    """Split, number and count (None if unknown) of a Parquet file, parsed from its name."""
    if found := _SHARD.fullmatch(file.stem):
        return found[1], int(found[2]), int(found[3])
    if _CONVERTED.fullmatch(file.stem):
        return file.parent.name, int(file.stem), None
    return file.stem, 0, 1


def _find_columns(
    file: Path, image_fields: Columns, text_fields: Columns
) -> tuple[dict[str, str], bool]:
    """Column of each field in a Parquet file, and whether the image column holds images.

    Raises:
        SettingsError: one is missing or holds something else.
    """
    try:
        with parquet_file(file, trusted=False) as opened:
            there = {each.name: holds_images(each.type) for each in opened.schema_arrow}
    except ValueError as error:
        raise SettingsError(str(error)) from error
    columns = {
        field: next((name for name in names if name in there), "")
        for field, names in (*image_fields.items(), *text_fields.items())
    }
    inside = {there.get(columns[field]) for field in image_fields}
    texts = {there.get(columns[field]) for field in text_fields}
    if None in inside or len(inside) > 1 or texts - {False}:
        found = ", ".join(f"{name} (images)" if kind else name for name, kind in there.items())
        images = (
            f"{' or '.join(names)} (images or their names)" for names in image_fields.values()
        )
        expected = ", ".join((*images, *map(" or ".join, text_fields.values())))
        raise SettingsError(f"{file}: the columns are {found}; expected {expected}")
    return columns, inside == {True}
