"""Whether evaluation images or captions were trained on.

Three looks, from certain to suspicious: images with the same bytes, captions with the same
words, images whose files have the same name (COCO's ids travel between data sets; numbered
files of one's own mean nothing). Optionally a perceptual hash, which finds images that were
resized or compressed again, and in drawn scenes also finds images that merely look alike.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePath

import numpy as np
from numpy.typing import NDArray
from PIL.Image import Image, Resampling

from compo_pipeline.evaluation.benchmarks.items import Subtask
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.images.decoding import ImageError, Limits, load, locate
from compo_pipeline.records import Caption, Fact

TRAINING_SPLIT = "train"

_WORDS = re.compile(r"\w+")
_NEAR_BITS = 4
# COCO_val2014_000000184613 of 2014 is 000000184613 of 2017.
_COCO_PREFIX = re.compile(r"^COCO_(?:train|val|test)\d{4}_")

Place = tuple[Path, str]
"""A folder of images and a path below it."""
_SIDE = 8


@dataclass(frozen=True, slots=True)
class Overlap:
    """What a subtask shares with the training rows.

    `images` counts the subtask's distinct images, `captions` its distinct right texts; the
    others say how many of these the training rows hold. `near` is None where no perceptual hash
    was asked for.
    """

    benchmark: str
    subtask: str
    images: int
    same_bytes: int
    same_name: int
    near: int | None
    captions: int
    same_caption: int

    @property
    def known_images(self) -> int:
        """Images that the training rows hold: the same bytes or, where looked for, alike."""
        return max(self.same_bytes, self.near or 0)


@dataclass(frozen=True, slots=True)
class Trained:
    """What is known of the training rows; `near` hashes are [n] 64-bit integers, or absent."""

    hashes: frozenset[str]
    names: frozenset[str]
    captions: frozenset[str]
    near: NDArray[np.uint64] | None


def image_id(path: str) -> str:
    """A file's name without its ending, and without what COCO of 2014 puts before the id."""
    return _COCO_PREFIX.sub("", PurePath(path).stem)


def normalised(text: str) -> str:
    """Lower-case words alone, so that punctuation and spacing make no difference."""
    return " ".join(_WORDS.findall(text.lower()))


def trained(
    captions: Iterable[Caption],
    facts: Iterable[Fact],
    root: Path,
    settings: EvaluationSettings,
) -> Trained:
    """Gather what identifies the images (below `root`) and sentences of the training split."""
    rows = [caption for caption in captions if caption.split == TRAINING_SPLIT]
    images = {caption.image for caption in rows}
    near = None
    if settings.perceptual_hash:
        with ThreadPoolExecutor(settings.workers) as pool:
            hashes = pool.map(_perceptual_hash, ((root, image) for image in images))
            near = np.unique(np.array([h for h in hashes if h is not None], dtype=np.uint64))
    return Trained(
        hashes=frozenset(f.image_hash for f in facts if f.image in images and f.image_hash),
        names=frozenset(image_id(image) for image in images),
        captions=frozenset(normalised(s) for caption in rows for s in caption.sentences),
        near=near,
    )


def overlaps(subtasks: Sequence[Subtask], known: Trained, workers: int) -> list[Overlap]:
    """Look for every subtask's images and right texts among the training rows."""
    places = list(dict.fromkeys((task.images, i.image) for task in subtasks for i in task.items))
    with ThreadPoolExecutor(workers) as pool:
        looked = pool.map(lambda place: _look(place, known), places)
        found = dict(zip(places, looked, strict=True))
    return [_overlap(task, found, known) for task in subtasks]


@dataclass(frozen=True, slots=True)
class _Found:
    """How one evaluation image stands among the training images."""

    same_bytes: bool
    same_name: bool
    near: bool


def _look(place: Place, known: Trained) -> _Found:
    same_name = image_id(place[1]) in known.names
    own = image_hash(place)
    if own is None:
        return _Found(False, same_name, False)
    near = known.near is not None and _near(place, known.near)
    return _Found(own in known.hashes, same_name, near)


def image_hash(place: Place) -> str | None:
    """SHA-256 of an image's file; None where there is none that may be read."""
    try:
        with locate(*place, Limits()).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except ImageError:
        return None


def _near(place: Place, known: NDArray[np.uint64]) -> bool:
    own = _perceptual_hash(place)
    if own is None:
        return False
    return bool((np.bitwise_count(known ^ np.uint64(own)) <= _NEAR_BITS).any())


def _overlap(subtask: Subtask, found: Mapping[Place, _Found], known: Trained) -> Overlap:
    own = [found[place] for place in {(subtask.images, item.image) for item in subtask.items}]
    texts = set()
    if not subtask.classes:
        texts = {normalised(text) for item in subtask.items for text in item.positives}
    return Overlap(
        benchmark=subtask.benchmark,
        subtask=subtask.name,
        images=len(own),
        same_bytes=sum(image.same_bytes for image in own),
        same_name=sum(image.same_name for image in own),
        near=None if known.near is None else sum(image.near for image in own),
        captions=len(texts),
        same_caption=len(texts & known.captions),
    )


def _perceptual_hash(place: Place) -> int | None:
    try:
        return difference_hash(load(*place, Limits()))
    except ImageError:
        return None


def difference_hash(image: Image) -> int:
    """64 bits: whether each of 8 x 8 cells is brighter than its right-hand neighbour."""
    grey = image.convert("L").resize((_SIDE + 1, _SIDE), Resampling.BILINEAR)
    pixels = np.asarray(grey, dtype=np.int16)
    bits = (pixels[:, :-1] > pixels[:, 1:]).ravel()
    return int.from_bytes(np.packbits(bits).tobytes(), "big")
