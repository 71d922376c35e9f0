"""What was measured of images, kept on disk while it is measured.

A run over a million images that is cut short goes on where it was, and one that follows
measures new and changed files only. Deleting the file is always safe.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import astuple
from pathlib import Path

from compo_pipeline.images.decoding import DecodedImage, ImageError, Limits, locate

_NOTES_PER_WRITE = 256


class Journal:
    """Lines of JSON: what the notes hold for, then one image a line; the last of a path counts.

    Notes made under other limits, or of another root, are not used.
    """

    def __init__(self, path: Path, root: Path, limits: Limits) -> None:
        """Name the file; it is read and written by the methods alone."""
        self._path = path
        self._root = root
        self._limits = limits
        self._header = json.dumps([str(root.resolve()), *astuple(limits)])
        self._unwritten: list[DecodedImage] = []

    def unchanged(self, paths: Iterable[str]) -> dict[str, DecodedImage]:
        """Notes of the paths whose files are as they were when noted."""
        noted = self._noted()
        return {path: noted[path] for path in paths if path in noted and self._holds(noted[path])}

    def note(self, image: DecodedImage) -> None:
        """Keep an image; it reaches the disk with some others."""
        self._unwritten.append(image)
        if len(self._unwritten) >= _NOTES_PER_WRITE:
            with self._path.open("a", encoding="utf-8") as file:
                file.writelines(map(_line, self._unwritten))
            self._unwritten.clear()

    def rewrite(self, images: Iterable[DecodedImage]) -> None:
        """Replace all notes at once."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self._path.with_suffix(".unfinished")
        with unfinished.open("w", encoding="utf-8") as file:
            file.write(f"{self._header}\n")
            file.writelines(map(_line, images))
        unfinished.replace(self._path)
        self._unwritten.clear()

    def _noted(self) -> dict[str, DecodedImage]:
        """All notes, after which the file is one that can be added to."""
        if self._path.is_file():
            header, *lines = self._path.read_text(encoding="utf-8").splitlines() or [""]
            if header == self._header:
                found = filter(None, map(_image, lines))
                return {image.path: image for image in found}
        self.rewrite([])
        return {}

    def _holds(self, image: DecodedImage) -> bool:
        """Whether the file is still the one that was noted."""
        try:
            status = locate(self._root, image.path, self._limits).stat()
        except (ImageError, OSError):
            return False
        return (status.st_size, status.st_mtime_ns) == (image.bytes, image.modified_ns)


def _line(image: DecodedImage) -> str:
    return json.dumps(astuple(image)) + "\n"


def _image(line: str) -> DecodedImage | None:
    """A noted image; none for a line that was cut off."""
    try:
        return DecodedImage(*json.loads(line))
    except (ValueError, TypeError):
        return None
