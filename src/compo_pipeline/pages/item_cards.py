"""Cards of benchmark items on which models differ: images, texts, and similarities."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, zip_longest
from operator import attrgetter

from compo_pipeline.benchmarks.items import Item, Subtask
from compo_pipeline.core.records import ItemChange
from compo_pipeline.core.seeding import drawn
from compo_pipeline.evaluation.evaluate import Comparison
from compo_pipeline.evaluation.protocols import GROUP_CHANCES
from compo_pipeline.pages.pages import Card, Cards, Cell, CellLike, Side, Table, image_card

# Where an item is scored by several metrics, its card is of the first of these.
_SHOWN = ("itt", "accuracy", "group", "t2i", "tot", "i2t_r1", "t2i_r1", "top1")
_NOTE = (
    "A random sample, spread over the subtasks. The numbers are cosines of image and text under "
    "each model; an item is right if every true text (green) is above every false one (red)."
)
_SECTION = attrgetter("model", "change", "baseline")
_SUBTASK = attrgetter("benchmark", "subtask")


def change_cards(
    subtasks: Sequence[Subtask], changes: Iterable[ItemChange], comparison: Comparison, count: int
) -> Iterator[Cards]:
    """Yield sections with random items that only one of two models has right.

    Args:
        subtasks: subtasks that were scored.
        changes: between the comparison's models.
        comparison: comparison of the models.
        count: items of a section at most.
    """
    tasks = {(task.benchmark, task.name): task for task in subtasks}
    labels = {model.name: model.label for model in comparison.models.values()}
    first: dict[tuple[str, ...], ItemChange] = {}
    shown = (one for one in changes if one.metric in _SHOWN)
    for one in sorted(shown, key=lambda one: _SHOWN.index(one.metric)):
        first.setdefault((*_SECTION(one), *_SUBTASK(one), one.item), one)
    ordered = sorted(first.values(), key=lambda one: (one.change == "broken", *_SUBTASK(one)))
    for (model, change, baseline), own in groupby(
        sorted(ordered, key=attrgetter("model")), _SECTION
    ):
        by_task = [drawn([*each], count, "gallery", *task) for task, each in groupby(own, _SUBTASK)]
        spread = [one for turn in zip_longest(*by_task) for one in turn if one is not None]
        names, fixed = (labels[baseline], labels[model]), change == "fixed"
        yield Cards(
            [
                _item_card(comparison.benchmarks[one.benchmark], tasks[_SUBTASK(one)], one, names)
                for one in spread[:count]
            ],
            small=True,
            title=f"Only {names[fixed]} is right",
            note=_NOTE,
            folded=not fixed,
        )


def _item_card(label: str, task: Subtask, one: ItemChange, names: tuple[str, str]) -> Card:
    """The card of a benchmark item.

    For a choice among images, it shows the most similar wrong one.
    """
    item = Item(one.item, one.image, one.positives, one.negatives, one.other_images)
    both, fixed = (one.baseline_similarities, one.model_similarities), one.change == "fixed"
    places, columns = task.image_locations(item), [*range(len(both[0]))]
    if one.metric == "t2i":
        rival = max(columns[1:], key=both[not fixed].__getitem__)
        places, columns = (places[0], places[rival]), [0, rival]
    elif one.metric == "tot":
        places = ()
    lines: list[list[CellLike]] = [
        [
            Cell(text, "words positive" if positive else "words negative"),
            *(f"{similarities[column]:.3f}" for similarities in both),
        ]
        for (text, positive), column in zip(_compared_pairs(one.metric, item), columns, strict=True)
    ]
    right, wrong = Cell("right", "good"), Cell("wrong", "bad")
    verdicts: list[CellLike] = ["result", *((wrong, right) if fixed else (right, wrong))]
    return Card(
        [f"{label} {task.name.replace('_', ' ')}", one.item],
        [Side(image=image_card(*place)) for place in places],
        Table(["", *names], [*lines, verdicts]),
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
