"""Finding a source before anything is read from it: its root, annotations, images and counts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from compo_pipeline.datasets.readers import reader
from compo_pipeline.datasets.readers.record import SourceError
from compo_pipeline.datasets.settings import DataSettings


def locate(data: DataSettings) -> dict[str, Any]:
    """Check that a source lies where the settings say.

    Returns:
        format, root, and per split its annotation files (relative to the root), its image
        folder, and how many records and files they hold.

    Raises:
        SourceError: something is missing or empty; the message says which key to mend.
        SettingsError: there is no such format.
    """
    chosen = reader(data)
    if not data.root.is_dir():
        raise SourceError(
            f"data.root: there is no folder '{data.root}' (seen from {Path.cwd()}); "
            "set data.root to the folder that holds annotations and images"
        )
    if not data.sources:
        raise SourceError("data.splits is empty: name at least a split for training")
    splits = {}
    files_in: dict[Path, int] = {}
    for split, source in data.sources.items():
        try:
            annotations = chosen.caption_files(data, source)
            records = _records(data, split, source)
        except SourceError as error:
            raise SourceError(f"data.splits.{split}: {error}") from error
        if not records:
            shared = len(data.sharing(source)) > 1
            raise SourceError(
                f"data.splits.{split}: {', '.join(map(str, annotations))} holds no record"
                + (f" of this split; raise data.shares.{split}" if shared else "")
            )
        folder = chosen.image_folder(data, source)
        if folder not in files_in:
            files_in[folder] = _files_below(folder, split)
        splits[split] = {
            "annotations": [str(path.relative_to(data.root)) for path in annotations],
            "records": records,
            "images": str(folder.relative_to(data.root)),
            "files": files_in[folder],
        }
    return {"format": data.format, "root": str(data.root), "splits": splits}


def _records(data: DataSettings, split: str, source: str) -> int:
    """Records of a split; those of a file that several splits share must be read to be told."""
    chosen = reader(data)
    if len(data.sharing(source)) > 1:
        return sum(1 for _ in chosen.read(data, split, source))
    return chosen.count(data, source)


def _files_below(folder: Path, split: str) -> int:
    """Files in a folder of images, at any depth."""
    if not folder.is_dir():
        raise SourceError(
            f"data.splits.{split}: there is no folder of images '{folder}'; "
            "mend data.splits, or data.images for a table"
        )
    files = sum(len(names) for _, _, names in os.walk(folder))
    if not files:
        raise SourceError(f"data.splits.{split}: the folder of images '{folder}' is empty")
    return files
