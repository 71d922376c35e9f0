"""COCO captions in the official layout, which rendered scenes share.

`annotations/captions_<split>.json` and a folder of images per split. One row per caption: that
caption comes first, the other captions of its image are the further ones.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from compo_pipeline.core.records import Rejected
from compo_pipeline.core.untrusted import read_json, shown, text_problem
from compo_pipeline.data.readers.record import (
    RawCaption,
    SourceError,
    checked,
    rejected,
    split_files,
)
from compo_pipeline.data.settings import DataSettings


def caption_files(data: DataSettings, source: str) -> list[Path]:
    """List with the path of the split's annotation file, `captions_<split>.json`."""
    return split_files(data, f"annotations/captions_{glob.escape(source)}.json")


def read(data: DataSettings, split: str, source: str) -> Iterator[RawCaption | Rejected]:
    """Yield a record per caption, in the file's order, then a rejection per uncaptioned image."""
    content = _load(data, source)
    files: dict[Any, str] = {}
    for entry in content["images"]:
        if problem := _image_problem(entry, files):
            yield rejected(_field(entry, "id"), _field(entry, "file_name"), problem)
        else:
            files[entry["id"]] = entry["file_name"]
    of_image: dict[Any, list[dict[str, Any]]] = {}
    for entry in content["annotations"]:
        if not _caption_problem(entry, files):
            of_image.setdefault(entry["image_id"], []).append(entry)
    for entry in content["annotations"]:
        if problem := _caption_problem(entry, files):
            yield rejected(_field(entry, "id"), _field(entry, "image_id"), problem)
            continue
        image = entry["image_id"]
        name = files[image]
        yield checked(
            sample_id=f"{split}-{entry['id']}",
            image_id=f"{split}-{image}",
            image=name if name.startswith("/") else f"{source}/{name}",
            own=(entry["caption"],),
            further=tuple(o["caption"] for o in of_image[image] if o is not entry),
            split=split,
        )
    for image, name in files.items():
        if image not in of_image:
            yield rejected(f"{split}-{image}", f"{source}/{name}", "no caption of this image")


def _load(data: DataSettings, source: str) -> dict[str, list[Any]]:
    """Read the lists `images` and `annotations` of the annotation file."""
    (path,) = caption_files(data, source)
    try:
        content = read_json(path)
    except ValueError as error:
        raise SourceError(f"{error}; fetch it again") from error
    lists = {name: _field(content, name) for name in ("images", "annotations")}
    for name, entries in lists.items():
        if not isinstance(entries, list):
            raise SourceError(
                f"{path} has no list '{name}': it is no COCO caption file; set data.format"
            )
    return lists


def _image_problem(entry: Any, known: dict[Any, str]) -> str | None:
    """Reason why an entry of `images` is invalid, or None for a valid entry."""
    image, name = _field(entry, "id"), _field(entry, "file_name")
    if not isinstance(image, int | str) or not isinstance(name, str):
        return f"images: {shown(entry)} lacks an id or a file_name"
    if image in known:
        return f"images: id {shown(image)} was already given to {shown(known[image])}"
    return None


def _caption_problem(entry: Any, files: dict[Any, str]) -> str | None:
    """Reason why an entry of `annotations` is invalid, or None for a valid entry."""
    for name in ("id", "image_id"):
        if not isinstance(_field(entry, name), int | str):
            return f"annotations: {name} is {shown(_field(entry, name))}, expected a number"
    if entry["image_id"] not in files:
        return f"annotations: no entry of images has the id {shown(entry['image_id'])}"
    return text_problem(entry.get("caption"))


def _field(entry: Any, name: str) -> Any:
    """Value of a field of a JSON entry, or None if it is absent, or the entry is no object."""
    return entry.get(name) if isinstance(entry, dict) else None
