"""Images without captions: all of a folder, at any depth. A captioner describes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from compo_pipeline.datasets.readers.record import (
    RawCaption,
    SourceError,
    checked,
    split_by_share,
)
from compo_pipeline.datasets.settings import DataSettings
from compo_pipeline.storage.records import Rejected
from compo_pipeline.storage.untrusted import files_below, path_below

ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".ppm", ".npy")
"""Endings of the names of image files, in lower case."""


def caption_files(data: DataSettings, source: str) -> list[Path]:
    """Empty list, after a check that a captioner is set and that the folder has images."""
    if not data.may_lack_captions:
        raise SourceError(
            "data.format=folder has images without captions: set recaption.captioner to endpoint "
            "or transformers, which writes them"
        )
    if data.images:
        raise SourceError("data.images says nothing of data.format=folder: set data.splits")
    require_images(data, source)
    return []


def image_folder(data: DataSettings, source: str) -> Path:
    """Folder of the split's images."""
    return data.root / source


def count(data: DataSettings, source: str) -> int:
    """Number of images in the split's folder."""
    return count_images(data, source)


def read(data: DataSettings, split: str, source: str) -> Iterator[RawCaption | Rejected]:
    """Yield a record without a caption for each image of the split, sorted by path."""
    caption_files(data, source)
    return records(data, split, source, source)


def records(
    data: DataSettings, split: str, source: str, place: str
) -> Iterator[RawCaption | Rejected]:
    """Yield a record without a caption for each image of a split; splits may share a folder.

    Args:
        data: settings.
        split: our name of it.
        source: the source's, which several splits may share.
        place: the folder of the images, below the root.
    """
    splits = data.sharing(source)
    if missing := [each for each in splits if len(splits) > 1 and each not in data.shares]:
        raise SourceError(
            f"the images of '{place or '.'}' serve the splits {', '.join(splits)}, and data.shares "
            f"has none of {', '.join(missing)}: set it"
        )
    for name in _image_paths(data, place):
        if len(splits) == 1 or split_by_share(data, splits, name) == split:
            yield checked(f"{split}-{name}", f"{split}-{name}", name, ("",), (), split)


def count_images(data: DataSettings, place: str) -> int:
    """Number of image files in a folder below the data's root, at any depth."""
    return sum(1 for _ in _image_paths(data, place))


def require_images(data: DataSettings, place: str) -> None:
    """Raise an error if a folder below the data's root has no image files.

    Raises:
        SourceError: it has none.
    """
    if next(_image_paths(data, place), None) is None:
        raise SourceError(
            f"there is no image ({', '.join(ENDINGS)}) below {data.root / place}: set data.root"
        )


def _image_paths(data: DataSettings, place: str) -> Iterator[str]:
    """Yield the paths of image files below a folder, relative to the root, without hidden ones."""
    try:
        # Links out of the root are a matter of each image, which ingest measures.
        folder = path_below(data.root, place or ".", follow_symlinks=True)
        found = files_below(folder, "**/*", follow_symlinks=True)
    except ValueError as error:
        raise SourceError(f"{error}; set data.splits to a folder below data.root") from error
    for path in found:
        name = path.relative_to(data.root)
        if path.suffix.lower() in ENDINGS and not any(part.startswith(".") for part in name.parts):
            yield name.as_posix()
