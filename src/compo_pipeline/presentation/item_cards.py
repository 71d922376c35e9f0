"""Cards of benchmark items: images, texts, and what each model makes of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, TypeVar

from compo_pipeline.benchmarks.items import Item, Subtask, items_by_key
from compo_pipeline.evaluation.comparison import BASE, FINE_TUNED
from compo_pipeline.evaluation.evaluate import Comparison
from compo_pipeline.evaluation.protocols import GROUP_CHANCES
from compo_pipeline.presentation.pages import Card, Cell, CellLike, Side, Table, image_card
from compo_pipeline.run.seeding import rng
from compo_pipeline.storage.records import ItemChange, Score

# Where an item is scored by several metrics, its card is of the first of these.
_SHOWN = ("itt", "accuracy", "group", "t2i", "tot", "i2t_r1", "t2i_r1", "top1")

_Key = tuple[str, str, str]
_Judged = Mapping[str, tuple[Sequence[float], bool]]
"""By label of a model: similarities, and whether it is right."""
T = TypeVar("T")


def sampled_cards(
    subtasks: Sequence[Subtask], scores: Iterable[Score], comparison: Comparison, count: int
) -> dict[str, list[Card]]:
    """Cards of random items that fine-tuning has fixed, broken or left wrong, over all subtasks.

    Args:
        subtasks: the image-to-text subtasks to sample from.
        scores: the run's scores.
        comparison: of the run's models.
        count: items of each kind.
    """
    tasks = {(task.benchmark, task.name): task for task in subtasks}
    items, models = items_by_key(subtasks), comparison.models
    by_item: dict[_Key, dict[str, Score]] = {}
    for score in scores:
        key = (score.benchmark, score.subtask, score.item)
        if score.metric in ("itt", "accuracy") and score.correct is not None and key in items:
            by_item.setdefault(key, {})[score.model] = score
    pools: dict[str, dict[str, list[_Key]]] = {kind: {} for kind in ("fixed", "broken", "wrong")}
    for key, by_model in by_item.items():
        before, after = (by_model[models[role].name].correct for role in (BASE, FINE_TUNED))
        if not (before and after):
            change = "fixed" if after else "broken" if before else "wrong"
            pools[change].setdefault(key[1], []).append(key)
    cards: dict[str, list[Card]] = {change: [] for change in pools}
    for change, pool in pools.items():
        for name, keys in pool.items():
            keys.sort()
            rng("gallery", 0, name).shuffle(keys)
        for key in _take_in_turn(pool, count):
            own = {model.label: by_item[key][model.name] for model in models.values()}
            judged = {name: (one.similarities, bool(one.correct)) for name, one in own.items()}
            metric, label = next(iter(own.values())).metric, comparison.benchmarks[key[0]]
            cards[change].append(_item_card(label, tasks[key[:2]], items[key], metric, judged))
    return cards


def hardest_cards(
    subtasks: Sequence[Subtask],
    changes: Iterable[ItemChange],
    benchmarks: Mapping[str, str],
    count: int,
) -> dict[str, list[Card]]:
    """Cards of the items that one of two models misses by most, spread over the subtasks.

    Args:
        subtasks: that were scored.
        changes: of two models.
        benchmarks: labels of the benchmarks.
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
    cards: dict[str, list[Card]] = {change: [] for change in pools}
    for change, pool in pools.items():
        for own in pool.values():
            own.sort(key=lambda one: -one.shortfall)
        for one in _take_in_turn(pool, count):
            item = Item(one.item, one.image, one.positives, one.negatives, one.other_images)
            judged = {
                one.baseline: (one.baseline_similarities, change == "broken"),
                one.model: (one.model_similarities, change == "fixed"),
            }
            task, label = tasks[one.benchmark, one.subtask], benchmarks[one.benchmark]
            cards[change].append(_item_card(label, task, item, one.metric, judged))
    return cards


def _take_in_turn(pools: Mapping[Any, Sequence[T]], count: int) -> list[T]:
    """Up to `count` entries, taken from each pool in turn, in the order of the pools' names."""
    turns = zip_longest(*(pool for _, pool in sorted(pools.items())))
    return [entry for turn in turns for entry in turn if entry is not None][:count]


def _item_card(label: str, task: Subtask, item: Item, metric: str, judged: _Judged) -> Card:
    """The card of a benchmark item; for a choice among images, with the most similar wrong one."""
    places = task.image_locations(item)
    columns: Sequence[int] = range(len(next(iter(judged.values()))[0]))
    if metric == "t2i":
        wrong = next(similarities for similarities, correct in judged.values() if not correct)
        rival = max(columns[1:], key=lambda place: wrong[place])
        places, columns = (places[0], places[rival]), (0, rival)
    elif metric == "tot":
        places = ()
    lines: list[list[CellLike]] = [
        [
            Cell(text, "words positive" if positive else "words negative"),
            *(f"{similarities[column]:.3f}" for similarities, _ in judged.values()),
        ]
        for (text, positive), column in zip(_compared_pairs(metric, item), columns, strict=True)
    ]
    verdicts = (
        Cell("right", "good") if correct else Cell("wrong", "bad") for _, correct in judged.values()
    )
    return Card(
        [f"{label} {task.name.replace('_', ' ')}", item.item],
        [Side(image=image_card(*place)) for place in places],
        Table(["", *judged], [*lines, ["result", *verdicts]]),
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
