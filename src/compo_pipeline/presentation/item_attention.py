"""What the phrases of benchmark items attend to under two models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from compo_pipeline.benchmarks.items import Item, Subtask
from compo_pipeline.evaluation.analysis.cases import item_cases
from compo_pipeline.evaluation.slices import Parser
from compo_pipeline.models.dense import NoPatches
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.presentation.attention_plots import TowersDiffer, panels_of, render
from compo_pipeline.presentation.item_cards import ItemCard
from compo_pipeline.presentation.pages import ImageCard, thumbnail

_SIDE = 2200  # of a grid, in pixels


@dataclass(frozen=True, slots=True)
class ItemAttention:
    """Grids of attention maps of benchmark items, or the reason why there are none."""

    grids: tuple[ImageCard, ...] = ()
    problem: str = ""


def item_attention(
    cards: Iterable[ItemCard],
    subtasks: Sequence[Subtask],
    models: tuple[LoadedModel, LoadedModel],
    names: tuple[str, str],
    parser: Parser,
    count: int,
) -> ItemAttention:
    """Grids of the attention that two models give to the phrases of some benchmark items.

    Args:
        cards: the items of a page; those without an image are left out.
        subtasks: that they are of.
        models: the baseline, and the model that is compared with it.
        names: of the two.
        parser: of texts.
        count: items of each kind of card.
    """
    chosen = list(_choose_cards(cards, subtasks, count))
    if not chosen:
        return ItemAttention()
    parses = parser({text: None for _, _, item in chosen for text in _compared_texts(item)})
    cases = {
        case: f"{card.subtask} {card.item}, {card.change}"
        for card, task, item in chosen
        for case in item_cases(task, item, [parses[text] for text in _compared_texts(item)])
    }
    try:
        panels = panels_of(*models, list(cases), subtasks[0].limits)
    except (NoPatches, TowersDiffer) as error:
        return ItemAttention(problem=error.reason)
    labels = {(case.image, case.phrase): label for case, label in cases.items()}
    labelled = [
        replace(panel, image=labels[panel.image, panel.phrase], names=names) for panel in panels
    ]
    title = f"Attention of phrases under {names[0]} and {names[1]}, and the difference"
    return ItemAttention(
        tuple(ImageCard(title, *thumbnail(grid, _SIDE)) for grid in render(labelled))
    )


def _compared_texts(item: Item) -> tuple[str, ...]:
    """The first positive and the first negative text of a benchmark item."""
    return (*item.positives[:1], *item.negatives[:1])


def _choose_cards(
    cards: Iterable[ItemCard], subtasks: Sequence[Subtask], count: int
) -> Iterator[tuple[ItemCard, Subtask, Item]]:
    """Yield the first item cards with an image of each kind (fixed, broken, wrong)."""
    tasks = {(task.benchmark, task.name): task for task in subtasks}
    seen: Counter[str] = Counter()
    for card in cards:
        if card.images and seen[card.change] < count:
            seen[card.change] += 1
            task = tasks[card.benchmark, card.subtask]
            yield card, task, next(item for item in task.items if item.item == card.item)
