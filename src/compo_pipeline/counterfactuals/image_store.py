"""Generated images: stored once by key, and published to the folder of a run."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from compo_pipeline.storage.files import atomic_file, atomic_folder
from compo_pipeline.storage.records import Counterfactual
from compo_pipeline.storage.tables import Table

if TYPE_CHECKING:
    from PIL import Image

_SUFFIXES = {"jpeg": ".jpg", "png": ".png"}
_OPTIONS: dict[str, dict[str, int]] = {"jpeg": {"quality": 92, "subsampling": 0}, "png": {}}
_UNSAFE = re.compile(r"[^A-Za-z0-9-]+")
_READABLE = 40  # characters of a sample_id in a file's name


class ImageStore:
    """Folder of generated image files by key; every file in it is complete."""

    def __init__(self, folder: Path, format_: str) -> None:
        self._folder, self._format = folder, format_

    @property
    def encoding(self) -> str:
        """Image format and encoder options as text, which is part of an image's key."""
        return f"{self._format} {_OPTIONS[self._format]}"

    def path(self, key: str) -> Path:
        """Path of the image file of a key, whether it exists or not."""
        return self._folder / key[:2] / f"{key}{_SUFFIXES[self._format]}"

    def save(self, key: str, image: Image.Image) -> None:
        """Write an image to the file of its key, atomically."""
        with atomic_file(self.path(key)) as temporary, temporary.open("wb") as file:
            image.convert("RGB").save(file, self._format, **_OPTIONS[self._format])


def published_path(sample_id: str, sentence: int, role: str, stored: Path) -> str:
    """Path of an image relative to the published folder, safe for any sample_id.

    It ends with the image's key: equal paths, equal images, in all runs. The key's first digits
    spread the files over 256 folders.
    """
    readable = _UNSAFE.sub("_", sample_id)[:_READABLE]
    return f"{stored.stem[:2]}/{role}-{sentence}-{readable}-{stored.name}"


@dataclass(frozen=True)
class StoredFiles(Iterable[tuple[str, Path]]):
    """Iterable of the published path and the stored file of each image in a table."""

    rows: Table[Counterfactual]
    store: ImageStore

    def __iter__(self) -> Iterator[tuple[str, Path]]:
        for batch in self.rows.batches("image"):
            for path in filter(None, batch.column(0).to_pylist()):
                yield path, self.store.path(Path(path).stem.rpartition("-")[2])


def publish(files: Iterable[tuple[str, Path]], folder: Path) -> None:
    """Make a folder with exactly these images; a folder that already has them is left alone.

    Args:
        files: path below the folder, and file of each image, iterated twice; linked where possible,
            else copied.
        folder: the published folder. Equal paths mean equal images, so a folder of these paths is
            left alone: another process may be reading it.
    """
    there = [(folder / relative).is_file() for relative, _ in files]
    stored = sum(file.is_file() for file in folder.rglob("*"))
    if folder.is_dir() and all(there) and len(there) == stored:
        return
    with atomic_folder(folder) as new:
        for relative, source in files:
            target = new / relative
            target.parent.mkdir(exist_ok=True)
            try:
                target.hardlink_to(source)
            except OSError:
                shutil.copyfile(source, target)
