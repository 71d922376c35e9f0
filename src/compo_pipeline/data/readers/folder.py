"""A folder of images, at any depth, with their captions in files beside them, or without captions.

The caption of `a.jpg` is the text of `a.txt` or `a.caption`, else a field of `a.json` with one of
the usual names; with `data.columns.caption` that field of `a.json`, else the text. A captioner
describes images that have none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from compo_pipeline.core.records import Rejected
from compo_pipeline.core.remote import read_bytes
from compo_pipeline.core.untrusted import files_below, parse_json, path_below
from compo_pipeline.data.readers.record import (
    CAPTION_NAMES,
    ENDINGS,
    NOT_CAPTIONED,
    RawCaption,
    SourceError,
    caption_records,
    captions_of,
    checked,
    rejected,
)
from compo_pipeline.data.settings import DataSettings

_JSON = ".json"
CAPTIONS = (".txt", ".caption", _JSON)
"""Endings of the names of files with an image's caption, the first that is there counts."""
_UNREAD = (".tif", ".tiff", ".jfif", ".jp2", ".jxl", ".svg", ".psd", ".dng", ".cr2", ".nef", ".arw")
"""Endings of images that are not read."""


def caption_files(data: DataSettings, source: str) -> list[Path]:
    """Paths of the files with captions, or none if a captioner writes them.

    Raises:
        SourceError: there is no image, or no caption and no captioner.
    """
    if data.images:
        raise SourceError("data.images says nothing of data.format=folder: set data.splits")
    images = dict(_images(data, source))
    if not images:
        raise SourceError(
            f"there is no image ({', '.join(ENDINGS)}) below {data.root / source}: set data.root"
        )
    found = [data.root / name for name in images.values() if name]
    if not found and not data.may_lack_captions:
        raise SourceError(
            f"no image below {data.root / source} has a caption beside it, such as a.txt for "
            f"a.jpg ({', '.join(CAPTIONS)}): add them, or set recaption.captioner to endpoint or "
            "transformers, which writes them"
        )
    return list(dict.fromkeys(found))


def read(data: DataSettings, split: str, source: str) -> Iterator[RawCaption | Rejected]:
    """Yield a record for each caption of the split's images, which are sorted by path."""
    caption_files(data, source)
    for name, beside in _images(data, source):
        sample_id = f"{split}-{name}"
        if (ending := PurePosixPath(name).suffix.lower()) in _UNREAD:
            yield rejected(
                sample_id, name, f"{ending} is not read; expected one of {', '.join(ENDINGS)}"
            )
            continue
        try:
            captions = _captions(data, beside) if beside else []
        except ValueError as error:
            yield rejected(sample_id, name, f"{beside}: {error}")
            continue
        if captions:
            yield from caption_records(sample_id, sample_id, name, captions, split)
        elif data.may_lack_captions:
            yield checked(sample_id, sample_id, name, ("",), (), split)
        else:
            detail = f"no caption in {beside}" if beside else f"no {', '.join(CAPTIONS)} beside it"
            yield rejected(sample_id, name, detail, NOT_CAPTIONED)


def _captions(data: DataSettings, beside: str) -> list[Any]:
    """Captions in a file beside an image, empty if it has none.

    Raises:
        ValueError: it is no JSON, or a link that leads out of the root.
    """
    content = read_bytes(path_below(data.root, beside, follow_symlinks=data.follow_symlinks))
    if not beside.endswith(_JSON):
        text = content.decode("utf-8-sig", "surrogateescape").strip()
        return [text] if text else []
    values = parse_json(content)
    if isinstance(values, dict):
        names = [data.columns.caption] if data.columns.caption else CAPTION_NAMES
        values = next((values[name] for name in names if values.get(name)), [])
    return captions_of(values)


def _images(data: DataSettings, place: str) -> Iterator[tuple[str, str | None]]:
    """Yield the images below a folder, each with its file of captions."""
    try:
        endings = CAPTIONS[::-1] if data.columns.caption else CAPTIONS
        return with_captions(visible_files(data.root, place), endings)
    except ValueError as error:
        raise SourceError(f"{error}; set data.splits to a folder below data.root") from error


def visible_files(root: Path, place: str = ".") -> list[PurePosixPath]:
    """Files below a folder of a root, sorted, without hidden ones and litter of macOS archives.

    Raises:
        ValueError: the folder is not below the root.
    """
    # Links out of the root are a matter of each image, which ingest measures.
    found = files_below(path_below(root, place, follow_symlinks=True), "**/*", follow_symlinks=True)
    paths = (PurePosixPath(path.relative_to(root).as_posix()) for path in found)
    return [
        path
        for path in paths
        if not any(part.startswith(".") or part == "__MACOSX" for part in path.parts)
    ]


def with_captions(
    paths: list[PurePosixPath], endings: Sequence[str] = CAPTIONS
) -> Iterator[tuple[str, str | None]]:
    """Yield the images among files, each with the file of its captions among them, or None.

    An image of an ending that is not read is one, unless one that is read has its name.
    """
    there = set(map(str, paths))
    shown = {path.with_suffix("") for path in paths if path.suffix.lower() in ENDINGS}
    for path in paths:
        ending = path.suffix.lower()
        if ending in ENDINGS or (ending in _UNREAD and path.with_suffix("") not in shown):
            beside = (str(path.with_suffix(each)) for each in endings)
            yield str(path), next((name for name in beside if name in there), None)
