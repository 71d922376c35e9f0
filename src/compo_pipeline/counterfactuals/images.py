"""Made images on disk: whole or not there, made once, and published under readable names."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable
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
    """Images by key; a file that is there under its key is whole."""

    def __init__(self, folder: Path, format_: Format) -> None:
        """Name the folder and the format of new images."""
        self._folder, self._format = folder, format_

    @property
    def encoding(self) -> str:
        """What decides a file beside its image."""
        return f"{self._format} {_OPTIONS[self._format]}"

    def path(self, key: str) -> Path:
        """Where an image lies, or will."""
        return self._folder / key[:2] / f"{key}{_SUFFIXES[self._format]}"

    def save(self, key: str, image: Image.Image) -> None:
        """Write beside the name, then take the name: nobody ever finds half an image."""
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

    It ends with the image's key: equal paths, equal images, whatever run they are of. The
    key's first digits spread the files over 256 folders.
    """
    readable = _UNSAFE.sub("_", sample_id)[:_READABLE]
    return f"{stored.stem[:2]}/{role}-{sentence}-{readable}-{stored.name}"


def publish(images: Iterable[tuple[Path, str]], folder: Path) -> None:
    """Put exactly these images into a folder, which is replaced as a whole where it holds others.

    Paths tell images apart, so a folder of these paths is left alone: somebody may be reading.

    Args:
        images: where each lies, and its path below the folder. They are linked, not copied,
            where the disk can do that.
        folder: where they go.
    """
    wanted = {relative: source for source, relative in images}
    there = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    if folder.is_dir() and there == wanted.keys():
        return
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for relative, source in wanted.items():
        target = partial / relative
        target.parent.mkdir(exist_ok=True)
        try:
            target.hardlink_to(source)
        except OSError:
            shutil.copyfile(source, target)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
