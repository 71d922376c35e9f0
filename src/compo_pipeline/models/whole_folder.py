"""Folders that are there whole or not at all."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """An empty folder to fill, which takes the place of `folder` once the block ends well.

    An error inside the block leaves what was there; a kill leaves the old folder, the new one or,
    between two renames, none.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as temporary:
        written = Path(temporary) / "new"
        written.mkdir()
        yield written
        if folder.exists():
            folder.rename(Path(temporary) / "old")
        written.rename(folder)
