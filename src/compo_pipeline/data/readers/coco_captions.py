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
    """Yield a rejection per entry that cannot be used, then a record per caption.

    Records are in the order of the file.
    """
    (path,) = caption_files(data, source)
    content = read_json(path)
    files: dict[int | str, str] = {}
    captions: list[tuple[int | str, int | str, Any]] = []
    for image, name in _entries(path, content, "images", "id", "file_name"):
        if not isinstance(image, int | str) or not isinstance(name, str) or image in files:
            found = f"id is {shown(image)} and file_name {shown(name)}"
            yield rejected(image, name, f"images: {found}, expected a number of its own and a text")
        else:
            files[image] = name
    for entry in _entries(path, content, "annotations", "id", "image_id", "caption"):
        number, image, text = entry
        if not isinstance(number, int | str) or not isinstance(image, int | str):
            found = f"id is {shown(number)}, image_id is {shown(image)}"
            yield rejected(number, image, f"annotations: {found}, expected numbers")
        elif problem := text_problem(text):
            yield rejected(number, image, problem)
        elif image not in files:
            yield rejected(number, image, f"annotations: no entry of images has the id {image}")
        else:
            captions.append(entry)
    places: dict[int | str, list[int]] = {}
    for place, (_, image, _) in enumerate(captions):
        places.setdefault(image, []).append(place)
    for place, (number, image, text) in enumerate(captions):
        name = files[image]
        yield checked(
            sample_id=f"{split}-{number}",
            image_id=f"{split}-{image}",
            image=name if name.startswith("/") else f"{source}/{name}",
            own=(text,),
            further=tuple(captions[other][2] for other in places[image] if other != place),
            split=split,
        )
    for image, name in files.items():
        if image not in places:
            yield rejected(f"{split}-{image}", f"{source}/{name}", "no caption of this image")


def _entries(path: Path, content: Any, name: str, *keys: str) -> Iterator[Any]:
    """Yield the values of some keys of each entry of a list, None where there is none."""
    entries = content.get(name) if isinstance(content, dict) else None
    if not isinstance(entries, list):
        raise SourceError(
            f"{path} has no list '{name}': it is no COCO caption file; set data.format"
        )
    for entry in entries:
        yield tuple(entry.get(key) if isinstance(entry, dict) else None for key in keys)
