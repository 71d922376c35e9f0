"""Images to begin with: items of the benchmarks, drawn at random, not chosen."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path

from compo_pipeline.configuration import SettingsError
from compo_pipeline.evaluation.benchmarks import Subtask, from_files
from compo_pipeline.evaluation.settings import BenchmarksSettings
from compo_pipeline.images.decoding import ImageError, Limits, load
from compo_pipeline.seeding import rng

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Example:
    """An image's file, and captions of which the last is wrong."""

    image: Path
    captions: tuple[str, ...]


def draw(settings: BenchmarksSettings, most: int, seed: int = 0) -> list[Example]:
    """An item of each subtask that asks for the right caption of an image; none without files.

    Args:
        settings: which benchmarks, and where.
        most: examples.
        seed: of the draw.
    """
    try:
        subtasks = from_files(replace(settings, zero_shot=False))
    except SettingsError as error:
        log.info("The page shows no examples: %s", error.message)
        return []
    rng("examples", seed).shuffle(subtasks)
    drawn = (_of(subtask, seed) for subtask in subtasks)
    return [example for example in drawn if example is not None][:most]


def _of(subtask: Subtask, seed: int) -> Example | None:
    """One of the subtask's items whose image can be used; not all of them are tried."""
    chosen = rng("examples", seed, subtask.benchmark, subtask.name)
    for item in chosen.sample(subtask.items, min(3, len(subtask.items))):
        try:
            load(subtask.images, item.image, Limits())
        except ImageError:
            continue
        return Example(subtask.path(item), (*item.positives, *item.negatives))
    return None
