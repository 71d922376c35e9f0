"""`data.format=auto`: the format, files and columns of captions, found by a look at the folder."""

from __future__ import annotations

import glob
import re
from dataclasses import replace
from pathlib import Path, PurePosixPath

from compo_pipeline.core.archives import image_columns
from compo_pipeline.core.tables import parquet_file
from compo_pipeline.data.readers import folder, table
from compo_pipeline.data.readers.delimited import log_once
from compo_pipeline.data.readers.record import (
    SourceError,
    named_split,
    split_files,
)
from compo_pipeline.data.settings import DataSettings

AUTO = "auto"
"""The format that stands for the one that is found."""

_WHOLE = "."  # the source of a split that is looked for
_TABLE, _FOLDER, _COCO, _TARS = "table", "folder", "coco_captions", "webdataset"
_DOWNLOADS, _PARQUET_IMAGES = "img2dataset", "image_parquet"
_USUAL = ("captions", table.METADATA)  # names of tables that come before others
_TEXTS = {*table.SUFFIXES} - {".parquet"}
_WORD = re.compile(r"[^\W\d_]+")
_COCO_FILE = re.compile(r"annotations/captions_(.+)\.json")


def identified(data: DataSettings) -> DataSettings:
    """Settings with the format, sources and columns that a look at the files finds.

    These take the place of the format `auto`, of the source `.` and of columns that are not set;
    one line of the log says which. Other settings are returned as they are.

    Raises:
        SourceError: nothing fits, or two formats or tables do.
    """
    whole = set(data.splits.values()) == {_WHOLE}
    if data.format != AUTO and (data.format == _FOLDER or not whole):
        return data
    if not data.root.is_dir() or not data.splits:
        return replace(data, format=_TABLE)  # whose reader says what is missing
    paths = folder.visible_files(data.root) if whole else _named_files(data)
    found = _fitting(data, paths, deep=not whole)
    if data.format != AUTO:
        if data.format not in found:
            return data
        found = {data.format: found[data.format]}
    if not found:
        raise SourceError(
            f"data.root: {data.root} has no captions that data.format=auto finds; "
            f"expected a table ({', '.join(table.SUFFIXES)}), texts beside images (a.txt for "
            "a.jpg), tars, or annotations/captions_<split>.json; where there are no captions, "
            "recaption.captioner writes them"
        )
    if len(found) > 1:
        shown = " and ".join(f"{name} ({files[0]})" for name, files in found.items())
        raise SourceError(
            f"data.format: {len(found)} formats fit {data.root}: {shown}; choose one, such as by "
            f"--params data.format={next(iter(found))}"
        )
    ((kind, files),) = found.items()
    splits = _sources(data, kind, files) if whole else _named_sources(data)
    data = replace(data, format=kind, splits=splits)
    if kind == _FOLDER:
        data = replace(data, images="")
    if kind in (_TABLE, _PARQUET_IMAGES):
        data = _with_columns(data)
    columns = {"image": data.columns.image, "caption": data.columns.caption}
    chosen = {f"data.columns.{name}": column for name, column in columns.items() if column}
    chosen = {f"data.splits.{split}": source for split, source in splits.items()} | chosen
    settings = ", ".join(f"{key}={value}" for key, value in chosen.items())
    log_once(f"{data.root} is read as data.format={kind}, {settings}")
    return data


def _fitting(data: DataSettings, paths: list[PurePosixPath], deep: bool) -> dict[str, list[str]]:
    """Files of captions, or images with captions beside them, by the format that they fit.

    Text tables in folders count if their names are usual, or if `deep`.
    """
    images = dict(folder.with_captions(paths))
    beside = {name for name in images.values() if name}
    others = [
        path
        for path in paths
        if str(path) not in beside
        and (
            deep
            or path.suffix not in _TEXTS
            or len(path.parts) == 1
            or path.stem in _USUAL
            or _COCO_FILE.fullmatch(str(path))
        )
    ]
    usual = [path for path in others if path.suffix in table.SUFFIXES and path.stem in _USUAL]
    found: dict[str, list[str]] = {}
    for path in others:
        expected = deep or path.stem in _USUAL
        if (kind := _kind(data.root, path, expected)) and (
            kind != _TABLE or path in usual or not usual
        ):
            found.setdefault(kind, []).append(str(path))
    if beside and _DOWNLOADS not in found:
        found[_FOLDER] = [name for name, text in images.items() if text]
    if not found and images and data.may_lack_captions:
        found[_FOLDER] = list(images)
    return found


def _kind(root: Path, path: PurePosixPath, expected: bool) -> str | None:
    """Format of a file of captions, or None for other files, such as JSON without records.

    Raises:
        SourceError: a table cannot be read, and is `expected` to be one.
    """
    if _COCO_FILE.fullmatch(str(path)):
        return _COCO
    if path.suffix == ".tar":
        return _TARS
    file = root / path
    if path.suffix == ".parquet" and file.with_suffix(".tar").is_file():
        return None  # img2dataset's table of what is in the tar
    if path.suffix == ".parquet":
        with parquet_file(file, trusted=False) as opened:
            if image_columns(opened):
                return _PARQUET_IMAGES
            if {"key", "status"} <= {*opened.schema_arrow.names}:
                return _DOWNLOADS
    if path.suffix == ".json":
        try:
            return _TABLE if table.column_names(file) or expected else None
        except SourceError:
            if expected:
                raise
            return None
    return _TABLE if path.suffix in table.SUFFIXES else None


def _named_sources(data: DataSettings) -> dict[str, str]:
    """Sources that `data.splits` names.

    A split without one is divided off the first's files.
    """
    first = next(source for source in data.splits.values() if source != _WHOLE)
    return {split: first if own == _WHOLE else own for split, own in data.splits.items()}


def _named_files(data: DataSettings) -> list[PurePosixPath]:
    """Files of the sources that `data.splits` names, relative to the root."""
    found: list[PurePosixPath] = []
    for source in _named_sources(data).values():
        coco = f"annotations/captions_{source}.json"
        if (data.root / coco).is_file():
            found.append(PurePosixPath(coco))
        elif (data.root / source).is_dir():
            found += folder.visible_files(data.root, source)
        else:
            files = _files_of(data, source)
            found += [PurePosixPath(file.relative_to(data.root).as_posix()) for file in files]
    return found


def _files_of(data: DataSettings, source: str) -> list[Path]:
    """Files of a source, at least one."""
    try:
        return split_files(data, source)
    except SourceError as error:
        raise SourceError(f"data.splits.{', '.join(data.sharing(source))}: {error}") from error


def _sources(data: DataSettings, kind: str, files: list[str]) -> dict[str, str]:
    """Source of each split, by the names of files and folders.

    A split that no file is named after is divided off the first one's files, as all splits are
    where no file is named after the first.
    """
    named: dict[str | None, list[str]] = {}
    for file in files:
        words = PurePosixPath(file).parts[:-1] if kind == _FOLDER else _WORD.findall(file)
        known = (split for word in words if (split := named_split(word, data.splits)))
        named.setdefault(next(known, None), []).append(file)
    first, loose = next(iter(data.splits)), named.get(None, [])
    if (kind == _FOLDER and loose) or first not in named:
        named = {None: files}
    elif both := [file for file in loose if PurePosixPath(file).stem in _USUAL]:
        raise _both_fit(data, kind, [*both, *named[first]])
    else:
        named.pop(None, None)
    sources = {split: _source(data, kind, own, split) for split, own in named.items()}
    rest = sources[first if first in sources else None]
    return {split: sources.get(split, rest) for split in data.splits}


def _source(data: DataSettings, kind: str, files: list[str], split: str | None) -> str:
    """The value of `data.splits` for some files: a name, a folder or a pattern."""
    if split is None and kind == _FOLDER:
        return data.images or _WHOLE
    if kind == _FOLDER:
        patterns = set()
        for file in files:
            folders = reversed(PurePosixPath(file).parents)
            patterns.add(str(next(each for each in folders if named_split(each.name, data.splits))))
    elif kind == _COCO:
        patterns = {found[1] for file in files if (found := _COCO_FILE.fullmatch(file))}
    elif len(files) == 1:
        patterns = {glob.escape(files[0])}
    else:
        patterns = {re.sub(r"\d+", "*", glob.escape(file)) for file in files}
    if len(patterns) == 1:
        return patterns.pop()
    raise _both_fit(data, kind, files)


def _both_fit(data: DataSettings, kind: str, files: list[str]) -> SourceError:
    """The error to raise where files are of no named splits."""
    named = ",".join(f"data.splits.{split}=<file>" for split in data.splits)
    return SourceError(
        f"data.splits: {files[0]} and {files[1]} in {data.root} both fit ({kind}); name the one "
        f"that is read, or that of each split: --params '{named}'"
    )


def _with_columns(data: DataSettings) -> DataSettings:
    """Settings with the columns of the first table that may be meant alone.

    A column of the usual name is not set, as readers know it.
    """
    path = _files_of(data, next(iter(data.splits.values())))[0]
    there, given = table.column_names(path), data.columns
    wanted = ["image"] if given.image is None and data.format == _TABLE else []
    wanted += ["caption"] if given.caption is None and given.sentences is None else []
    wanted = [name for name in wanted if table.own_spelling(name, there) is None]
    guesses = table.guessed_columns(path) if wanted else {}
    named = {name: guesses[name][0] for name in wanted if len(guesses[name]) == 1}
    if set(wanted) - named.keys() and not data.may_lack_captions:
        return data  # the reader's error names both
    return replace(data, columns=replace(given, **named))
