"""Overlap of benchmark items: with the training rows, and of validation items with reported ones.

Three checks, from certain to suspicious: images with the same bytes, captions with the same words,
image files with the same name (COCO's ids are the same in many data sets; numbered files of other
sources are not).
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import chain
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc

from compo_pipeline.benchmarks.items import (
    ImagePlace,
    Item,
    Subtask,
    items_by_key,
    set_of,
    sets_of,
)
from compo_pipeline.core.hashing import files_hash, hash_of
from compo_pipeline.core.records import Caption, Fact
from compo_pipeline.core.seeding import digest
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.core.tables import Splits, Table, splits_of
from compo_pipeline.data.images.decoding import (
    ImageError,
    file_name,
    locate,
    open_file,
    source_name,
)
from compo_pipeline.evaluation.slices import BINDING, ItemSlices

log = logging.getLogger(__name__)

TRAINING_SPLIT = "train"

_WORDS = re.compile(r"\w+")
_DIGITS = 16
# COCO_val2014_000000184613 of 2014 is 000000184613 of 2017.
_COCO_PREFIX = re.compile(r"^COCO_(?:train|val|test)\d{4}_")
# A validation subtask that shares more than this with the reported items is the wrong files.
_MOST_SHARED = 0.5


@dataclass(frozen=True, slots=True)
class Overlap:
    """Counts of a benchmark's images, captions and attribute-object pairs in the training rows.

    `images` counts its distinct image files, of all images of its items, `captions` its distinct
    texts that describe one of them; the other fields count how many of these are in the training
    rows. `bindings` counts the items by whether their attribute-object pairs occur in the training
    captions, where that slice is configured. `items` is the fingerprint of what was compared
    (`items_hash`, `images_hash`).
    """

    benchmark: str
    subtask: str
    images: int
    same_bytes: int
    same_name: int
    captions: int
    same_caption: int
    bindings: dict[str, int] = field(default_factory=dict)
    items: str = ""


class HashedTexts:
    """Set of texts, stored as 64-bit hashes."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._hashes = np.unique(np.fromiter(map(digest, texts), np.uint64))

    def __len__(self) -> int:
        return len(self._hashes)

    def __contains__(self, text: str) -> bool:
        wanted = np.uint64(digest(text))
        place = self._hashes.searchsorted(wanted)
        return bool(place < len(self._hashes) and self._hashes[place] == wanted)


@dataclass(frozen=True, slots=True)
class TrainingRows:
    """Hashes of the training images and captions, by which overlaps with benchmarks are found."""

    hashes: HashedTexts = field(default_factory=HashedTexts)
    names: HashedTexts = field(default_factory=HashedTexts)
    captions: HashedTexts = field(default_factory=HashedTexts)


def image_id(path: str) -> str:
    """Stem of a file name, without the prefix of COCO 2014."""
    return _COCO_PREFIX.sub("", PurePath(path).stem)


def normalise_text(text: str) -> str:
    """The words of a text in lower case, without punctuation and extra spaces."""
    return " ".join(_WORDS.findall(text.lower()))


def training_rows(
    captions: Iterable[Caption],
    facts: Iterable[Fact],
    split: Splits = TRAINING_SPLIT,
) -> TrainingRows:
    """Hashes of the training rows' images and captions, by which they are found in benchmarks."""
    rows, measured = training_captions(Table.of(captions, Caption), split), Table.of(facts, Fact)
    images = rows.column("image").unique()
    shown = measured.where(np.asarray(pc.is_in(measured.column("image"), value_set=images)))
    return TrainingRows(
        hashes=HashedTexts(filter(None, _column_values(shown, "image_hash"))),
        names=HashedTexts(image_id(image.as_py()) for image in images),
        captions=HashedTexts(
            map(normalise_text, chain.from_iterable(_column_values(rows, "sentences")))
        ),
    )


def training_captions(
    captions: Iterable[Caption], split: Splits = TRAINING_SPLIT
) -> Table[Caption]:
    """Rows of the captions table in the splits that are trained on."""
    return Table.of(captions, Caption).having("split", splits_of(split))


def _column_values(rows: Table[Any], column: str) -> Iterator[Any]:
    """Iterate over the values of a text column, batch by batch."""
    return (value for batch in rows.batches(column) for value in batch.column(0).to_pylist())


def count_overlaps(
    subtasks: Sequence[Subtask], known: TrainingRows, workers: int, slices: ItemSlices
) -> list[Overlap]:
    """Count each set's images, captions and attribute-object pairs in the training rows."""
    places = _distinct_files(subtasks)
    with ThreadPoolExecutor(workers) as pool:
        matches = pool.map(lambda place: _match_image(place, known), places)
        found = dict(zip(places, matches, strict=True))
    return [_count_overlap(own, found, known, slices) for own in sets_of(subtasks).values()]


class _ImageMatch(NamedTuple):
    """Whether a benchmark image is among the training images, by bytes and by name.

    `identity` has the hash of its bytes and its file's name: rows of a Parquet file may repeat it.
    """

    identity: tuple[str | None, str]
    same_bytes: bool
    same_name: bool


def _match_image(place: ImagePlace, known: TrainingRows) -> _ImageMatch:
    """Search one benchmark image among the training images."""
    own, name = image_hash(place), _source_name(place)
    same = own is not None and own in known.hashes
    return _ImageMatch((own, name), same, bool(name) and image_id(name) in known.names)


def _count_overlap(
    subtasks: Sequence[Subtask],
    matches: Mapping[ImagePlace, _ImageMatch],
    known: TrainingRows,
    slices: ItemSlices,
) -> Overlap:
    """Overlap counts of one set of subtasks, from the matches of its images."""
    items = [(task, item) for task in subtasks for item in task.items]
    places = {place for each in items for place in _item_files(*each)}
    own = {matches[place].identity: matches[place] for place in places}.values()
    texts = {
        normalise_text(text)
        for task, item in items
        if not task.classes
        for text in (*item.positives, *(item.negatives if "group" in task.protocols else ()))
    }
    names = chain.from_iterable(slices.get(key, ()) for key in items_by_key(subtasks))
    return Overlap(
        benchmark=subtasks[0].benchmark,
        subtask=set_of(subtasks[0].name),
        images=len(own),
        same_bytes=sum(image.same_bytes for image in own),
        same_name=sum(image.same_name for image in own),
        captions=len(texts),
        same_caption=sum(text in known.captions for text in texts),
        bindings=dict(
            Counter(name.removeprefix(BINDING) for name in names if name.startswith(BINDING))
        ),
        items=hash_of(items_hash(subtasks), images_hash(subtasks)),
    )


def _item_files(task: Subtask, item: Item) -> list[ImagePlace]:
    """Locations of an item's image files.

    A cropped image counts as its whole file.
    """
    return [(root, file_name(image), limits) for root, image, limits in task.image_locations(item)]


def _distinct_files(subtasks: Iterable[Subtask]) -> list[ImagePlace]:
    """Locations of the distinct image files of all items, in the items' order.

    In this order those in a Parquet file are read.
    """
    files = (each for task in subtasks for item in task.items for each in _item_files(task, item))
    return list(dict.fromkeys(files))


def _source_name(place: ImagePlace) -> str:
    """Original file name of an image, or its name in the item if it cannot be read."""
    try:
        return source_name(*place)
    except ImageError:
        return place[1]


def image_hash(place: ImagePlace) -> str | None:
    """SHA-256 of an image file, or None if the file cannot be read."""
    try:
        with open_file(*place) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except ImageError:
        return None


def image_hashes(subtasks: Iterable[Subtask], workers: int) -> dict[ImagePlace, str | None]:
    """SHA-256 of each image file of the items, or None for those that cannot be read."""
    places = _distinct_files(subtasks)
    with ThreadPoolExecutor(workers) as pool:
        return dict(zip(places, pool.map(image_hash, places), strict=True))


def without_reported(
    validation: Sequence[Subtask], reported: Sequence[Subtask], workers: int, key: str
) -> list[Subtask]:
    """The validation subtasks, without the items that share image or texts with reported items.

    An item is left out if one of its images has the same bytes as one of a reported item, or if a
    subtask of the same name has the same texts for another image: then the text-only half of the
    item is the same. Equal class names alone do not make items the same.

    Args:
        validation: items that select a model or its settings.
        reported: items whose results are reported.
        workers: threads that read images.
        key: YAML key of the validation items, for the error.

    Raises:
        SettingsError: more than half of a subtask is also reported.
    """
    hashes = image_hashes([*validation, *reported], workers)

    def images_of(task: Subtask, item: Item) -> set[str | None]:
        return {hashes[place] for place in _item_files(task, item)} - {None}

    images = {each for task in reported for item in task.items for each in images_of(task, item)}
    texts = {_text_key(task, item) for task in reported for item in task.items} - {None}
    found = []
    for task in validation:
        items = tuple(
            item
            for item in task.items
            if images.isdisjoint(images_of(task, item)) and _text_key(task, item) not in texts
        )
        shared, name = len(task.items) - len(items), f"{task.benchmark} {task.name}"
        if shared > _MOST_SHARED * len(task.items):
            raise SettingsError(
                f"{key}: {shared} of {len(task.items)} items of {name} are also reported; name "
                "files and a split that share nothing with those of 'benchmarks'"
            )
        if shared:
            log.info(
                "%s: %d of %d validation items are also reported and left out",
                name,
                shared,
                len(task.items),
            )
        found.append(replace(task, items=items))
    return found


def _text_key(
    task: Subtask, item: Item
) -> tuple[str, str, tuple[str, ...], tuple[str, ...]] | None:
    """Key (subtask, texts) of an item, or None in a subtask with classes or without negatives."""
    if task.classes or not item.negatives:
        return None
    return task.benchmark, task.name, item.positives, item.negatives


def items_hash(subtasks: Sequence[Subtask]) -> str:
    """Hash, 16 hexadecimal digits, of the items of subtasks as their adapter reads them."""
    content = hashlib.sha256()
    for task in subtasks:
        found = asdict(task)
        # A folder of this machine, and what changes no score.
        for key in ("images", *(each.name for each in fields(task) if not each.compare)):
            del found[key]
        if not task.limits.exif:
            found["exif"] = False
        content.update(json.dumps(found, sort_keys=True).encode())
    return content.hexdigest()[:_DIGITS]


def images_hash(subtasks: Sequence[Subtask]) -> str:
    """Hash, 16 hexadecimal digits, of the images' bytes and of the names of missing images.

    Items of missing images are skipped.
    """
    present: set[tuple[str, Path]] = set()
    missing: set[str] = set()
    places = {
        place for task in subtasks for item in task.items for place in task.image_locations(item)
    }
    for root, image, limits in places:
        try:
            path = locate(root, image, limits)
            # Of an image in an archive, the archive's.
            present.add((f"{path.relative_to(root)}", path))
        except ImageError:
            missing.add(image)
    content = f"{files_hash(sorted(present))} {sorted(missing)}"
    return hashlib.sha256(content.encode()).hexdigest()[:_DIGITS]
