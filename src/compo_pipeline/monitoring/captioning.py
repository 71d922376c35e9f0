"""Logged images that are worth captioning, as a folder that `data.sources` reads.

    images/<hash>.<ending>    as they were sent
    requests.csv              path of each image, the request that it came with, its text
    refused.csv               hashes of images that cannot be decoded, and why

Reports add to the folder; an image is there once.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from PIL import Image

from compo_decoding import FORMATS
from compo_pipeline.images.decoding import Limits, inspect
from compo_pipeline.monitoring.window import Window
from compo_pipeline.storage.files import atomic_file, write_text
from compo_pipeline.storage.untrusted import read_csv

TABLE, REFUSED, IMAGES = "requests.csv", "refused.csv", "images"
_ENDINGS = {"JPEG": "jpg"}
_COLUMNS = ("image", "request", "row", "requested_text")


def request_rows(window: Window, hashes: Iterable[str]) -> dict[str, dict[str, str]]:
    """Id, table row and text of the first request with each image, by the image's hash."""
    first: dict[str, int] = {}
    for place, name in enumerate(window.hashes):
        first.setdefault(name, place)
    return {
        name: {
            "request": str(window.requests[first[name]]),
            "row": str(window.rows[first[name]]),
            "requested_text": window.captions[first[name]] or "",
        }
        for name in hashes
    }


def add_images(
    rows: Mapping[str, Mapping[str, str]], found: Iterable[tuple[str, bytes]], folder: Path
) -> None:
    """Add logged images to the folder of images to caption, each checked by decoding it.

    Args:
        rows: columns of the table by hash.
        found: hashes and bytes of images.
        folder: of the images and their tables; made if it is missing.
    """
    (folder / IMAGES).mkdir(parents=True, exist_ok=True)
    table, refused = (
        _read_table(folder / name, key) for name, key in ((TABLE, "image"), (REFUSED, "hash"))
    )
    for name, content in found:
        path = f"{IMAGES}/{name}.{_file_extension(content)}"
        with atomic_file(folder / path) as temporary:
            temporary.write_bytes(content)
        problem = inspect(folder, path, Limits()).error
        if problem is None:
            table[path] = {"image": path, **rows[name]}
        else:
            (folder / path).unlink()
            refused[name] = {"hash": name, "reason": problem}
    _write_table(folder / TABLE, _COLUMNS, table)
    _write_table(folder / REFUSED, ("hash", "reason"), refused)


def image_files(folder: Path) -> dict[str, str]:
    """Paths of the images in the folder of images to caption, by hash."""
    return {Path(path).stem: path for path in _read_table(folder / TABLE, "image")}


def source_lines(folder: Path, data_root: Path, name: str, sources: Collection[str]) -> str:
    """YAML settings that add the folder of logged images to the data of a training.

    Args:
        folder: of the images.
        data_root: `data.root`.
        name: of the dataset, for its source where there are no sources yet.
        sources: names of `data.sources`.
    """
    own = folder.resolve()
    root = data_root.resolve() if sources else Path(os.path.commonpath([data_root.resolve(), own]))
    added: dict[str, Any] = {
        "requests": {
            "weight": 1,
            "root": os.path.relpath(own, root),
            "format": "table",
            "splits": {"train": TABLE},
        }
    }
    data: dict[str, Any] = {"sources": added}
    if not sources:
        present = {name: {"weight": 3, "root": os.path.relpath(data_root.resolve(), root)}}
        data = {"root": os.path.relpath(root), "sources": {**present, **added}}
    lines = {"data": data, "recaption": {"captioner": "endpoint", "keep_original": True}}
    return yaml.safe_dump(lines, sort_keys=False, allow_unicode=True)


def _file_extension(content: bytes) -> str:
    """File extension for the bytes of an image; `bin` if they are no image."""
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            return _ENDINGS.get(image.format or "", (image.format or "bin").lower())
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return "bin"


def _read_table(path: Path, key: str) -> dict[str, dict[str, str]]:
    """Read the rows of a CSV file, by their value in a key column; empty if there is no file."""
    return {row[key]: row for row in read_csv(path)} if path.exists() else {}


def _write_table(path: Path, columns: Iterable[str], rows: Mapping[str, Mapping[str, str]]) -> None:
    """Write rows as a CSV file with a header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows.values())
    write_text(path, text.getvalue())
