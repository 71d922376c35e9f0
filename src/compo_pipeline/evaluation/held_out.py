"""Validation items: those that choose a model or its settings share nothing with the reported."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from compo_pipeline.configuration import SettingsError
from compo_pipeline.evaluation.benchmarks import Item, Subtask
from compo_pipeline.evaluation.contamination import Place, image_hash
from compo_pipeline.seeding import digest

# Where more than this share of a subtask is reported too, its files are the wrong ones.
_MOST_SHARED = 0.5

log = logging.getLogger(__name__)

_Texts = tuple[tuple[str, ...], tuple[str, ...]]


def held_apart(
    validation: Sequence[Subtask], reported: Sequence[Subtask], workers: int, key: str
) -> list[Subtask]:
    """The validation items without those that are among the reported ones.

    An item is left out where its image's file has the same bytes as a reported item's, or where
    it asks the same texts of another image in a subtask of the same name: then the text-only
    half of the item is the same. Class names alone make no item the same.

    Args:
        validation: items that choose.
        reported: items whose results are reported.
        workers: threads that read images.
        key: the YAML key of the validation items, for the error.

    Raises:
        SettingsError: more than half of a subtask is reported too.
    """
    hashes = _hashes([*validation, *reported], workers)
    images = {hashes[_place(task, item)] for task in reported for item in task.items} - {None}
    texts = {(task.benchmark, task.name): _asked(task) for task in reported}
    kept = []
    for task in validation:
        known = texts.get((task.benchmark, task.name), set())
        items = tuple(
            item
            for item in task.items
            if hashes[_place(task, item)] not in images and _texts(task, item) not in known
        )
        _report(task, len(task.items) - len(items), key)
        kept.append(replace(task, items=items))
    return kept


def identity(tasks: Sequence[Subtask]) -> str:
    """Sixteen hexadecimal digits of what is asked, and how; of images, their names alone."""
    asked = (f"{replace(task, images=Path())}" for task in tasks)
    return f"{digest(*asked):016x}"


def _report(task: Subtask, shared: int, key: str) -> None:
    name = f"{task.benchmark} {task.name}"
    if shared > _MOST_SHARED * len(task.items):
        raise SettingsError(
            f"{key}: {shared} of {len(task.items)} items of {name} are among the reported ones; "
            "name files and a split that share nothing with those of 'benchmarks'"
        )
    if shared:
        log.info(
            "%s: %d of %d validation items are reported too: left out",
            *(name, shared, len(task.items)),
        )


def _hashes(tasks: Sequence[Subtask], workers: int) -> dict[Place, str | None]:
    places = list(dict.fromkeys(_place(task, item) for task in tasks for item in task.items))
    with ThreadPoolExecutor(workers) as pool:
        return dict(zip(places, pool.map(image_hash, places), strict=True))


def _place(task: Subtask, item: Item) -> Place:
    return task.images, item.image


def _asked(task: Subtask) -> set[_Texts]:
    return {texts for item in task.items if (texts := _texts(task, item)) is not None}


def _texts(task: Subtask, item: Item) -> _Texts | None:
    """What is asked of an item's image; None where all items are asked the same."""
    if task.classes or not item.negatives:
        return None
    return item.positives, item.negatives
