"""Cards of benchmark items: images, texts, and what each model makes of them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple, TypeVar

from compo_pipeline.benchmarks.items import Item, Subtask, items_by_key
from compo_pipeline.evaluation.protocols import GROUP_CHANCES
from compo_pipeline.presentation.pages import ImageCard, image_card
from compo_pipeline.run.seeding import rng
from compo_pipeline.storage.records import ItemChange, Score

log = logging.getLogger(__name__)

# Where an item is scored by several metrics, its card is of the first of these.
_SHOWN = ("itt", "accuracy", "group", "t2i", "tot", "i2t_r1", "t2i_r1", "top1")

_Key = tuple[str, str, str]
T = TypeVar("T")


class ItemLine(NamedTuple):
    """A line of a benchmark item's card: texts, whether they match, and each model's cosine."""

    text: str
    positive: bool
    cosines: tuple[float, ...]


class ItemCard(NamedTuple):
    """A benchmark item as pages show it: images, texts, cosines, whether each model is right."""

    change: str
    benchmark: str
    subtask: str
    item: str
    images: tuple[ImageCard, ...]
    texts: list[ItemLine]
    correct: list[bool]


def sampled_cards(
    subtasks: Sequence[Subtask],
    scores: Iterable[Score],
    models: Mapping[str, str],
    count: int,
) -> list[ItemCard]:
    """Cards of randomly drawn items that are fixed, broken or still wrong, over all subtasks.

    Args:
        subtasks: the image-to-text subtasks to sample from.
        scores: the run's scores.
        models: role to name; the kinds compare `base` with `fine_tuned`.
        count: items of each kind.
    """
    tasks = {(task.benchmark, task.name): task for task in subtasks}
    items = items_by_key(subtasks)
    by_item: dict[_Key, dict[str, Score]] = {}
    for score in scores:
        key = (score.benchmark, score.subtask, score.item)
        if score.metric in ("itt", "accuracy") and score.correct is not None and key in items:
            by_item.setdefault(key, {})[score.model] = score
    pools: dict[str, dict[str, list[_Key]]] = {kind: {} for kind in ("fixed", "broken", "wrong")}
    for key, by_model in by_item.items():
        before, after = (by_model[models[role]].correct for role in ("base", "fine_tuned"))
        if not (before and after):
            change = "fixed" if after else "broken" if before else "wrong"
            pools[change].setdefault(key[1], []).append(key)
    cards = []
    for change, pool in pools.items():
        for name, keys in pool.items():
            keys.sort()
            rng("gallery", 0, name).shuffle(keys)
        for key in _take_in_turn(pool, count):
            own = [by_item[key][name] for name in models.values()]
            similarities = [score.similarities for score in own]
            correct = [bool(score.correct) for score in own]
            task = tasks[key[:2]]
            cards.append(_item_card(change, task, items[key], own[0].metric, similarities, correct))
    return _showable_cards(cards)


def hardest_cards(
    subtasks: Sequence[Subtask], changes: Iterable[ItemChange], count: int
) -> list[ItemCard]:
    """Cards of the items that one of two models misses by most, spread over the subtasks.

    Args:
        subtasks: that were scored.
        changes: of two models.
        count: cards of fixed items, and of broken ones.
    """
    tasks = {(task.benchmark, task.name): task for task in subtasks}
    by_item: dict[tuple[str, str, str, str], ItemChange] = {}
    shown = (one for one in changes if one.metric in _SHOWN)
    for one in sorted(shown, key=lambda one: _SHOWN.index(one.metric)):
        by_item.setdefault((one.change, one.benchmark, one.subtask, one.item), one)
    pools: dict[str, dict[tuple[str, str], list[ItemChange]]] = {"fixed": {}, "broken": {}}
    for one in by_item.values():
        pools[one.change].setdefault((one.benchmark, one.subtask), []).append(one)
    cards = []
    for change, pool in pools.items():
        for own in pool.values():
            own.sort(key=lambda one: -one.shortfall)
        for one in _take_in_turn(pool, count):
            item = Item(one.item, one.image, one.positives, one.negatives, one.other_images)
            both = one.baseline_similarities, one.model_similarities
            correct = [change == "broken", change == "fixed"]
            task = tasks[one.benchmark, one.subtask]
            cards.append(_item_card(change, task, item, one.metric, both, correct))
    return _showable_cards(cards)


def _take_in_turn(pools: Mapping[Any, Sequence[T]], count: int) -> list[T]:
    """Up to `count` entries, taken from each pool in turn, in the order of the pools' names."""
    turns = zip_longest(*(pool for _, pool in sorted(pools.items())))
    return [entry for turn in turns for entry in turn if entry is not None][:count]


def _showable_cards(cards: Iterable[ItemCard]) -> list[ItemCard]:
    """The item cards whose images can all be read; logs a warning for an unreadable image."""
    found = []
    for card in cards:
        problems = [image for image in card.images if image.problem]
        for image in problems:
            log.warning("%s was scored, but cannot be shown: %s", image.label, image.problem)
        if not problems:
            found.append(card)
    return found


def _item_card(
    change: str,
    task: Subtask,
    item: Item,
    metric: str,
    similarities: Sequence[Sequence[float]],
    correct: list[bool],
) -> ItemCard:
    """The card of a benchmark item; for a choice among images, with the most similar wrong one."""
    places = task.image_locations(item)
    columns: Sequence[int] = range(len(similarities[0]))
    if metric == "t2i":
        wrong = similarities[correct.index(False)]
        rival = max(columns[1:], key=lambda place: wrong[place])
        places, columns = (places[0], places[rival]), (0, rival)
    elif metric == "tot":
        places = ()
    lines = zip(_compared_pairs(metric, item), columns, strict=True)
    return ItemCard(
        change,
        task.benchmark,
        task.name,
        item.item,
        tuple(image_card(*place) for place in places),
        [
            ItemLine(text, positive, tuple(own[column] for own in similarities))
            for (text, positive), column in lines
        ],
        correct,
    )


def _compared_pairs(metric: str, item: Item) -> Iterator[tuple[str, bool]]:
    """Yield for each cosine on a card the texts or images compared, and whether they match."""
    right, wrong = item.positives, item.negatives
    if metric in ("accuracy", "itt"):
        yield from ((text, True) for text in right)
        yield from ((text, False) for text in wrong)
    elif metric in GROUP_CHANCES:
        for place in (0, 1):
            yield f"image {place + 1}: {right[0]}", place == 0
            yield f"image {place + 1}: {wrong[0]}", place == 1
    elif metric == "t2i":
        yield f"first image: {right[0]}", True
        yield "second image, the same text", False
    elif metric == "tot":
        yield f"{right[0]} | {right[1]}", True
        yield f"{right[0]} | {wrong[0]}", False
        yield f"{right[1]} | {wrong[0]}", False
    else:
        yield " | ".join(right), True
        yield "the most similar of the others", False
