"""Measure the images of a source: each distinct path is hashed and decoded once."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import PIL

from compo_pipeline.core.files import size_and_time
from compo_pipeline.core.hashing import hash_of
from compo_pipeline.core.progress import Meter
from compo_pipeline.core.stores import KeyValueStore
from compo_pipeline.core.table_files import LOCAL, PrepareSettings, map_partitions
from compo_pipeline.data.images import decoding
from compo_pipeline.data.images.decoding import DecodedImage, ImageError, Limits
from compo_pipeline.data.quality.settings import IngestSettings

AT_ONCE = 50_000
"""Images that are measured together; their measurements are in memory."""
_IMAGES_PER_TASK = 64

log = logging.getLogger(__name__)


def measure(
    root: Path, images: Iterable[str], settings: IngestSettings, engine: PrepareSettings = LOCAL
) -> dict[str, DecodedImage]:
    """Hash and decode images, in the order of their paths, or read stored measurements.

    With `settings.journal`, files of unchanged size and time are not read again, unless the
    decoder has changed.
    """
    paths = list(dict.fromkeys(images))
    store = KeyValueStore(settings.journal, DecodedImage) if settings.journal else None
    depends = (root.resolve(), settings.limits, f"{decoding.DECODING} Pillow {PIL.__version__}")
    keys = {path: hash_of(path, _version(root, path, settings.limits), *depends) for path in paths}
    stored = store.get(keys.values()) if store else {}
    found = {image.path: image for image in stored.values()}
    if found:
        log.info("%d of %d images are known from %s", len(found), len(paths), settings.journal)
    missing = [path for path in paths if path not in found]
    inspect_all = partial(_inspect_all, root, settings.limits)
    starts = range(0, len(missing), _IMAGES_PER_TASK)
    groups = (missing[start : start + _IMAGES_PER_TASK] for start in starts)
    with Meter(len(missing), "measuring images") as meter:
        for group in map_partitions(inspect_all, groups, engine, threads=True):
            if store:
                store.put({keys[image.path]: image for image in group if image.sha256})
            for image in group:
                found[image.path] = image
                meter.advance()
    return {path: found[path] for path in paths}


def _version(root: Path, path: str, limits: Limits) -> tuple[int, int] | None:
    """Size and time of an image's file or of its archive, or None if it is missing."""
    try:
        return size_and_time(decoding.locate(root, path, limits))
    except (ImageError, OSError):
        return None


def _inspect_all(root: Path, limits: Limits, paths: list[str]) -> list[DecodedImage]:
    """Hash and decode each image of a group.

    An unreadable one has the error in its result.
    """
    return [decoding.inspect(root, path, limits) for path in paths]
