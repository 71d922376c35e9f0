"""Items to look at: what the fine-tuning mended, what it broke, what stays wrong."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from compo_pipeline.evaluation.benchmarks import Item, Subtask
from compo_pipeline.images.decoding import ImageError, Limits, load
from compo_pipeline.presentation.thumbnails import thumbnail
from compo_pipeline.records import Score
from compo_pipeline.seeding import rng

log = logging.getLogger(__name__)

Fate = Literal["mended", "broken", "wrong"]
FATES: dict[Fate, str] = {
    "mended": "wrong before, right after fine-tuning",
    "broken": "right before, wrong after fine-tuning",
    "wrong": "wrong before and after",
}
_SIDE = 320


@dataclass(frozen=True, slots=True)
class Line:
    """One text of an item and its cosine with the image under each model, in their order."""

    text: str
    right: bool
    cosines: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Card:
    """One item: its image as a data URI, its texts, each model's verdict, in their order."""

    fate: Fate
    benchmark: str
    subtask: str
    item: str
    image: str
    width: int
    height: int
    lines: tuple[Line, ...]
    verdicts: tuple[bool, ...]


def cards(
    subtasks: Sequence[Subtask],
    scores: Iterable[Score],
    models: Mapping[str, str],
    count: int,
    seed: int = 0,
) -> list[Card]:
    """A random draw of items of each fate, spread evenly over the subtasks.

    Args:
        subtasks: the image-to-text subtasks to draw from.
        scores: the run's scores.
        models: role to name; the fates compare `base` with `fine_tuned`.
        count: items of each fate.
        seed: of the draw, so that nobody picks.
    """
    items = {
        (task.benchmark, task.name, item.item): (task, item)
        for task in subtasks
        for item in task.items
    }
    found: dict[tuple[str, str, str], dict[str, Score]] = {}
    for score in scores:
        key = (score.benchmark, score.subtask, score.item)
        if score.metric in ("itt", "accuracy") and score.correct is not None and key in items:
            found.setdefault(key, {})[score.model] = score
    chosen: list[Card] = []
    for fate in FATES:
        pools: dict[str, list[tuple[str, str, str]]] = {}
        for key, by_model in found.items():
            if _fate(by_model, models) == fate:
                pools.setdefault(key[1], []).append(key)
        for key in _spread(pools, count, seed):
            card = _card(fate, *items[key], [found[key][name] for name in models.values()])
            if card is not None:
                chosen.append(card)
    return chosen


def _fate(by_model: Mapping[str, Score], models: Mapping[str, str]) -> Fate | None:
    before, after = (by_model[models[role]].correct for role in ("base", "fine_tuned"))
    if after:
        return None if before else "mended"
    return "broken" if before else "wrong"


def _spread(
    pools: Mapping[str, list[tuple[str, str, str]]], count: int, seed: int
) -> list[tuple[str, str, str]]:
    """Up to `count` keys, one of each pool in turn."""
    shuffled = []
    for name in sorted(pools):
        pool = sorted(pools[name])
        rng("gallery", seed, name).shuffle(pool)
        shuffled.append(pool)
    turns = max((len(pool) for pool in shuffled), default=0)
    keys = [pool[turn] for turn in range(turns) for pool in shuffled if turn < len(pool)]
    return keys[:count]


def _card(fate: Fate, task: Subtask, item: Item, by_model: Sequence[Score]) -> Card | None:
    try:
        image = thumbnail(load(task.images, item.image, Limits()), _SIDE)
    except ImageError as error:
        log.warning("%s was scored, but can no longer be shown: %s", task.path(item), error)
        return None
    texts = [(text, True) for text in item.positives] + [(text, False) for text in item.negatives]
    lines = tuple(
        Line(text, right, tuple(score.similarities[place] for score in by_model))
        for place, (text, right) in enumerate(texts)
    )
    verdicts = tuple(bool(score.correct) for score in by_model)
    return Card(fate, task.benchmark, task.name, item.item, *image, lines, verdicts)
