"""`data.format=auto`: the format, files and columns of captions, found by a look at the folder."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path, PurePosixPath

from compo_pipeline.datasets.readers import folder, table
from compo_pipeline.datasets.readers.delimited import log_once
from compo_pipeline.datasets.readers.record import (
    RawCaption,
    SourceError,
    named_split,
    no_files,
    source_files,
)
from compo_pipeline.datasets.settings import DataSettings
from compo_pipeline.images.decoding import ACCEPTED, is_there
from compo_pipeline.storage.archives import image_columns

AUTO = "auto"
"""The format that stands for the one that is found."""

_WHOLE = "."  # the source of a split that is looked for
_TABLE, _FOLDER, _COCO, _TARS = "table", "folder", "coco_captions", "webdataset"
_IMG2DATASET, _PARQUET_IMAGES = "img2dataset", "image_parquet"
_FOUND = (_TABLE, _COCO, _TARS, _IMG2DATASET, _PARQUET_IMAGES)  # if a format is set, in its folder
_USUAL = ("captions", table.METADATA)  # names of tables that come before others
_TOKENS = re.compile(r"[^\W\d_]+")
_FIRST = 20  # images that tell the folder of all
_COCO_FILE = re.compile(r"annotations/captions_(.+)\.json")


def identified(data: DataSettings) -> DataSettings:
    """Settings with the format, sources and columns that a look at the files finds.

    These take the place of the format `auto`, of the source `.` and of columns that are not set;
    one line of the log says which. Other settings are returned as they are.

    Raises:
        SourceError: nothing fits, or two formats or tables do.
    """
    whole = bool(data.splits) and set(data.splits.values()) == {_WHOLE}
    if data.format != AUTO and not (whole and data.format in _FOUND):
        return data
    if not data.root.is_dir() or not data.splits:
        return replace(data, format=_TABLE)  # whose reader says what is missing
    found = _of_folder(data) if whole else _of_sources(data)
    if found.format in (_TABLE, _PARQUET_IMAGES):
        found = _with_columns(found)
    sources = dict.fromkeys(found.splits.values())
    parts = [f"'{each}' for {', '.join(found.sharing(each))}" for each in sources]
    parts += [f"data.images={found.images}"] if found.images else []
    for name in ("image", "caption"):
        column = getattr(found.columns, name)
        parts += [f"data.columns.{name}={column}"] if column else []
    log_once(f"{data.root} is read with data.format={found.format}: {', '.join(parts)}")
    return found


def _of_folder(data: DataSettings) -> DataSettings:
    """Settings for what is in the root, looked at as a whole."""
    fitting = _fitting(data)
    if data.format != AUTO:
        fitting = {name: files for name, files in fitting.items() if name == data.format}
    if not fitting:
        raise SourceError(
            f"data.root: {data.root} has no captions that data.format={data.format} finds; "
            f"expected a table ({', '.join(table.SUFFIXES)}), texts beside images (a.txt for "
            "a.jpg), tars, or annotations/captions_<split>.json; where there are no captions, "
            "recaption.captioner writes them"
        )
    if len(fitting) > 1:
        shown = " and ".join(f"{name} ({files[0]})" for name, files in fitting.items())
        raise SourceError(
            f"data.format: {len(fitting)} formats fit {data.root}: {shown}; choose by --params "
            f"data.format={next(iter(fitting))} and data.splits, or move the files of the others "
            "away"
        )
    ((name, files),) = fitting.items()
    return replace(
        data,
        format=name,
        splits=_sources(data, name, files),
        images="" if name == _FOLDER else data.images,
    )


def _fitting(data: DataSettings) -> dict[str, list[str]]:
    """Files of captions below the root, by the format that they fit."""
    paths = list(_visible_files(data.root))
    images = dict(folder.with_captions(paths))
    beside = {name for name in images.values() if name}
    found: dict[str, list[str]] = {}
    tables = []
    for path in paths:
        name = str(path)
        if _COCO_FILE.fullmatch(name):
            found.setdefault(_COCO, []).append(name)
        elif path.suffix == ".tar":
            found.setdefault(_TARS, []).append(name)
        elif (
            path.suffix in table.SUFFIXES
            and name not in beside
            and (len(path.parts) == 1 or path.stem == table.METADATA or path.suffix == ".parquet")
        ):
            tables.append(path)
    usual = [path for path in tables if path.stem in _USUAL]
    for path in usual or tables:
        # A tar of img2dataset has a table of its samples beside it.
        if path.with_suffix(".tar") not in paths and (kind := _kind(data.root / path)):
            found.setdefault(kind, []).append(str(path))
    if beside and _IMG2DATASET not in found:
        found[_FOLDER] = [name for name, text in images.items() if text]
    if not found and images and data.may_lack_captions:
        found[_FOLDER] = list(images)
    return found


def _visible_files(root: Path) -> Iterator[PurePosixPath]:
    """Yield the files below a folder, relative to it, sorted and without hidden ones."""
    for place, folders, names in os.walk(root):
        base = PurePosixPath(os.path.relpath(place, root))
        folders[:] = sorted(each for each in folders if not folder.is_hidden(base / each))
        yield from (base / name for name in sorted(names) if not folder.is_hidden(base / name))


def _kind(path: Path) -> str | None:
    """Format of a table by its content; None for a JSON file without records."""
    if path.suffix == ".parquet":
        with table.parquet_file(path) as file:
            if image_columns(file):
                return _PARQUET_IMAGES
            there = set(file.schema_arrow.names)
        if {"key", "status"} <= there and path.with_suffix("").is_dir():
            return _IMG2DATASET
    if path.suffix == ".json":
        try:
            table.column_names(path)
        except SourceError:
            return None
    return _TABLE


def _sources(data: DataSettings, kind: str, files: list[str]) -> dict[str, str]:
    """Source of each split, by the names of files and folders.

    A split that no file is named after is divided off the first one's files, as all splits are
    where no file is named after the first.
    """
    named: dict[str | None, list[str]] = {}
    for file in files:
        named.setdefault(_split_in(file, kind, data), []).append(file)
    first, loose = next(iter(data.splits)), named.get(None, [])
    if (kind == _FOLDER and loose) or first not in named:
        named = {first: files}
    elif both := [file for file in loose if PurePosixPath(file).stem in _USUAL]:
        raise _both_fit(data, kind, [*both, *named[first]])
    sources = {split: _source(data, kind, files) for split, files in named.items() if split}
    return {split: sources.get(split, sources[first]) for split in data.splits}


def _split_in(file: str, kind: str, data: DataSettings) -> str | None:
    """The split that a file's name, or a folder of it, says."""
    places = PurePosixPath(file).parts
    words = places[:1] if kind == _FOLDER else _TOKENS.findall(file)
    return next((split for word in words if (split := named_split(word, data.splits))), None)


def _source(data: DataSettings, kind: str, files: list[str]) -> str:
    """The value of `data.splits` for some files: a name, a folder or a pattern."""
    if kind == _FOLDER:
        tops = {PurePosixPath(file).parts[0] for file in files}
        named = {top for top in tops if named_split(top, data.splits)}
        return tops.pop() if tops == named and len(tops) == 1 else data.images or _WHOLE
    if kind == _COCO:
        names = [found[1] for file in files if (found := _COCO_FILE.fullmatch(file))]
        if len(names) == 1:
            return names[0]
    elif len(files) == 1:
        return glob.escape(files[0])
    elif len(patterns := {re.sub(r"\d+", "*", glob.escape(file)) for file in files}) == 1:
        return patterns.pop()
    raise _both_fit(data, kind, files)


def _both_fit(data: DataSettings, kind: str, files: list[str]) -> SourceError:
    """The error to raise where files are of no named splits."""
    named = ",".join(f"data.splits.{split}=<file>" for split in data.splits)
    return SourceError(
        f"data.splits: {files[0]} and {files[1]} in {data.root} both fit ({kind}); name the one "
        f"that is read, or that of each split: --params '{named}'"
    )


def _of_sources(data: DataSettings) -> DataSettings:
    """Settings with the format of the files that `data.splits` names.

    A split of which it does not is divided off the first one's files.
    """
    first = next(source for source in data.splits.values() if source != _WHOLE)
    named = {split: first if own == _WHOLE else own for split, own in data.splits.items()}
    found: dict[str, str] = {}
    for source in named.values():
        kind: str | None
        if (data.root / "annotations" / f"captions_{source}.json").is_file():
            kind = _COCO
        elif (data.root / source).is_dir():
            kind = _FOLDER
        elif files := source_files(data, source):
            kind = _TARS if files[0].suffix == ".tar" else _kind(files[0])
        else:
            splits = ", ".join(data.sharing(source))
            raise SourceError(f"data.splits.{splits}: {no_files(data, source)}")
        found.setdefault(kind or _TABLE, source)
    if len(found) > 1:
        shown = " and ".join(f"'{source}' ({kind})" for kind, source in found.items())
        raise SourceError(
            f"data.splits: {shown} are of two formats; expected one, data.sources takes several"
        )
    return replace(data, format=next(iter(found)), splits=named)


def _with_columns(data: DataSettings) -> DataSettings:
    """Settings with the columns of the first table, and the folder from which its paths start.

    A column is found if it has its usual name, or is the only one that may be meant.
    """
    source = next(iter(data.splits.values()))
    path = source_files(data, source)[0]
    there, given = table.column_names(path), data.columns
    wanted = ["image"] if given.image is None and data.format == _TABLE else []
    wanted += ["caption"] if given.caption is None and given.sentences is None else []
    wanted = [name for name in wanted if table.own_spelling(name, there) is None]
    guesses = table.guessed_columns(path) if wanted else {}
    named = {name: guesses[name][0] for name in wanted if len(guesses[name]) == 1}
    data = replace(data, columns=replace(given, **named))
    if data.format == _PARQUET_IMAGES or data.images or set(wanted) - named.keys():
        return data
    rows = islice(table.read(data, next(iter(data.splits)), source), _FIRST)
    images = [PurePosixPath(row.image) for row in rows if isinstance(row, RawCaption)]
    starts = [
        start
        for start in ("", *sorted(each.name for each in data.root.iterdir() if each.is_dir()))
        if 2 * sum(is_there(data.root, str(start / each), ACCEPTED) for each in images)
        > len(images)
    ]
    return replace(data, images=starts[0]) if len(starts) == 1 else data
