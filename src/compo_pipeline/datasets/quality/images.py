"""Measure the images of a source: each distinct path is hashed and decoded once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

import PIL

from compo_pipeline.datasets.quality.settings import IngestSettings
from compo_pipeline.images import decoding, perceptual
from compo_pipeline.images.decoding import DecodedImage, ImageError, Limits
from compo_pipeline.run.engines import LOCAL, PrepareSettings, map_partitions
from compo_pipeline.run.progress import Meter
from compo_pipeline.storage.files import size_and_time
from compo_pipeline.storage.hashing import hash_of
from compo_pipeline.storage.stores import KeyValueStore

Found = TypeVar("Found")

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
    depends = (root.resolve(), settings.limits, _decoder())
    keys = {path: hash_of(path, *depends) for path in paths}
    stored = store.get(keys.values()) if store else {}
    found = {
        image.path: image
        for image in stored.values()
        if _is_unchanged(root, image, settings.limits)
    }
    if found:
        log.info("%d of %d images are known from %s", len(found), len(paths), settings.journal)
    missing = [path for path in paths if path not in found]
    inspect_all = partial(_inspect_all, root, settings.limits)
    for group in _map_in_groups(inspect_all, missing, "measuring images", engine):
        if store:
            store.put({keys[image.path]: image for image in group})
        found |= {image.path: image for image in group}
    return {path: found[path] for path in paths}


def perceptual_hashes(
    root: Path, images: Mapping[str, str], settings: IngestSettings, engine: PrepareSettings = LOCAL
) -> dict[str, int]:
    """Perceptual hash of each image by path; computed hashes are cached in `settings.journal`.

    Args:
        root: of the data.
        images: paths, and the sha256 of each image's bytes.
        settings: of the images.
        engine: decodes.
    """
    store = KeyValueStore(settings.journal, int) if settings.journal else None
    keys = {path: hash_of("perceptual", _decoder(), sha256) for path, sha256 in images.items()}
    stored = store.get(keys.values()) if store else {}
    missing = [path for path, key in keys.items() if key not in stored]
    hash_all = partial(_hash_all, root, settings.limits)
    for group in _map_in_groups(hash_all, missing, "comparing images", engine):
        found = {keys[path]: value for path, value in group}
        if store:
            store.put(found)
        stored |= found
    return {path: stored[key] for path, key in keys.items()}


def _hash_all(root: Path, limits: Limits, paths: list[str]) -> list[tuple[str, int]]:
    """Pairs of path and perceptual hash for images of a group."""
    return [(path, perceptual.difference_hash(decoding.load(root, path, limits))) for path in paths]


def _map_in_groups(
    function: Callable[[list[str]], list[Found]],
    paths: list[str],
    what: str,
    engine: PrepareSettings,
) -> Iterator[list[Found]]:
    """Yield a function's results for groups of images, computed by an engine, with progress."""
    with Meter(len(paths), what) as meter:
        groups = (
            paths[start : start + _IMAGES_PER_TASK]
            for start in range(0, len(paths), _IMAGES_PER_TASK)
        )
        for group in map_partitions(function, groups, engine, threads=True):
            yield group
            for _ in group:
                meter.advance()


def _decoder() -> str:
    return f"{decoding.DECODING} Pillow {PIL.__version__}"


def _is_unchanged(root: Path, image: DecodedImage, limits: Limits) -> bool:
    """Whether an image file still has the size and version of its stored measurement."""
    try:
        found = size_and_time(decoding.locate(root, image.path, limits))
    except (ImageError, OSError):
        return False
    return found == (image.bytes, image.version)


def _inspect_all(root: Path, limits: Limits, paths: list[str]) -> list[DecodedImage]:
    """Hash and decode each image of a group; an unreadable one has the error in its result."""
    return [decoding.inspect(root, path, limits) for path in paths]
