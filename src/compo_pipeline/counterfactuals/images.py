"""Counterfactual images on disk: a store by key, and a published folder with readable names."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from PIL import Image

Format = Literal["jpeg", "png"]
_SUFFIXES: dict[Format, str] = {"jpeg": ".jpg", "png": ".png"}
_OPTIONS: dict[Format, dict[str, int]] = {"jpeg": {"quality": 92, "subsampling": 0}, "png": {}}
_UNSAFE = re.compile(r"[^A-Za-z0-9-]+")
_READABLE = 40  # characters of a sample_id in a file's name


class ImageStore:
    """Images by key; a file in the store is complete."""

    def __init__(self, folder: Path, format_: Format) -> None:
        self._folder, self._format = folder, format_

    @property
    def encoding(self) -> str:
        """Format and options, which a file depends on beside its image."""
        return f"{self._format} {_OPTIONS[self._format]}"

    def path(self, key: str) -> Path:
        """The file of an image, existing or not."""
        return self._folder / key[:2] / f"{key}{_SUFFIXES[self._format]}"

    def save(self, key: str, image: Image.Image) -> None:
        """Write an image atomically."""
        path = self.path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        with unfinished.open("wb") as file:
            image.convert("RGB").save(file, self._format, **_OPTIONS[self._format])
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)


def published(sample_id: str, sentence: int, role: str, stored: Path) -> str:
    """Path of an image below the published folder, safe for any sample_id.

    It ends with the image's key: equal paths, equal images, in all runs. The key's first digits
    spread the files over 256 folders.
    """
    readable = _UNSAFE.sub("_", sample_id)[:_READABLE]
    return f"{stored.stem[:2]}/{role}-{sentence}-{readable}-{stored.name}"


def publish(images: Mapping[str, Path], folder: Path) -> None:
    """Put exactly these images into a folder, which is replaced as a whole unless it holds them.

    Args:
        images: the file of each path below the folder; linked where possible, else copied.
        folder: the published folder. Equal paths mean equal images, so a folder of these paths is
            left alone: another process may be reading it.
    """
    stored = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    if folder.is_dir() and stored == images.keys():
        return
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for relative, source in images.items():
        target = partial / relative
        target.parent.mkdir(exist_ok=True)
        try:
            target.hardlink_to(source)
        except OSError:
            shutil.copyfile(source, target)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
