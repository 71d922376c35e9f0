"""Every distinct image of a source, hashed and decoded once."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from compo_pipeline import cores
from compo_pipeline.images import decoding
from compo_pipeline.images.decoding import DecodedImage, Limits
from compo_pipeline.progress import track
from compo_pipeline.quality.journal import Journal
from compo_pipeline.quality.settings import IngestSettings

# One task per image would drown a pool in bookkeeping.
_IMAGES_PER_TASK = 64

_log = logging.getLogger(__name__)


def measure(root: Path, images: Iterable[str], settings: IngestSettings) -> dict[str, DecodedImage]:
    """What is found at each path, in the order given.

    With a journal, a file whose size and time of change are those noted there is not read again.
    """
    paths = list(dict.fromkeys(images))
    journal = Journal(settings.journal, root, settings.limits) if settings.journal else None
    known = journal.unchanged(paths) if journal else {}
    if known:
        _log.info("%d of %d images are known from %s", len(known), len(paths), settings.journal)
    rest = [path for path in paths if path not in known]
    for image in track(_inspected(root, rest, settings), len(rest), "measuring images"):
        known[image.path] = image
        if journal:
            journal.note(image)
    found = {path: known[path] for path in paths}
    if journal and rest:
        journal.rewrite(found.values())
    return found


def _inspected(root: Path, paths: list[str], settings: IngestSettings) -> Iterator[DecodedImage]:
    """Images in the order of their paths, inspected by as many workers as are worth starting."""
    groups = [paths[i : i + _IMAGES_PER_TASK] for i in range(0, len(paths), _IMAGES_PER_TASK)]
    inspect_all = partial(_inspect_all, root, settings.limits)
    workers = min(settings.workers or cores.available(), len(groups))
    if workers <= 1:
        yield from (image for group in groups for image in inspect_all(group))
        return
    with _pool(settings.pool, workers) as pool:
        for group in pool.map(inspect_all, groups):
            yield from group


@contextmanager
def _pool(kind: str, workers: int) -> Iterator[Executor]:
    """A pool that drops what has not begun when the run is interrupted."""
    pool: Executor
    if kind == "threads":
        pool = ThreadPoolExecutor(workers)
    else:
        # A forked worker would carry along whatever its parent had loaded.
        pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _inspect_all(root: Path, limits: Limits, paths: list[str]) -> list[DecodedImage]:
    return [decoding.inspect(root, path, limits) for path in paths]
