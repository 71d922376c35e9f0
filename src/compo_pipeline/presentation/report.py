"""Report of a run: one self-contained page, and its plots beside it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from compo_pipeline.evaluation.benchmarks import Item, Subtask
from compo_pipeline.evaluation.comparison import FINE_TUNED, OPPONENTS, Row
from compo_pipeline.evaluation.conclusions import summary_sentence
from compo_pipeline.evaluation.evaluate import Comparison
from compo_pipeline.evaluation.published import published_results
from compo_pipeline.presentation import pages, plots
from compo_pipeline.presentation.pages import ImageCard, image_card
from compo_pipeline.records import Rejected, Score
from compo_pipeline.seeding import rng

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

PAGE = "report.html"
SUBTASKS = "subtasks.png"
CURVES = "curves.png"

CHANGES = {
    "fixed": "wrong before, right after fine-tuning",
    "broken": "right before, wrong after fine-tuning",
    "wrong": "wrong before and after",
}
"""Kinds of items in the gallery."""

_KEY_METRICS = (
    ("sugar_crepe_pp", "itt", "average"),
    ("sugar_crepe", "accuracy", "average"),
    ("sugar_crepe_pp", "tot", "average"),
)


@dataclass(frozen=True, slots=True)
class ReportInputs:
    """Inputs of a report."""

    comparison: Comparison
    scores: Iterable[Score]
    """The rows behind the comparison."""
    subtasks: Sequence[Subtask]
    """The benchmarks whose items the gallery shows."""
    quarantine: Sequence[Rejected]
    """Rows that validation rejected."""
    curves: pd.DataFrame
    """Training curves, with a `step` column."""
    gallery: int
    """Number of items shown of each kind."""
    facts: Mapping[str, str]
    """Facts about the run, label to text: date, command, commit, recipe, ..."""
    settings: Mapping[str, Any]
    """Settings of the training."""
    links: Sequence[pages.Link] = ()
    """Related pages."""


class ItemText(NamedTuple):
    """A text of an item, and its cosine with the image under each model."""

    text: str
    positive: bool
    cosines: tuple[float, ...]


class ItemCard(NamedTuple):
    """An item with its texts, and whether each model has it right."""

    change: str
    benchmark: str
    subtask: str
    item: str
    image: ImageCard
    texts: list[ItemText]
    correct: list[bool]


def write(inputs: ReportInputs, folder: Path) -> Path:
    """Write `report.html` and its plots; the page itself needs no other file and no network."""
    folder.mkdir(parents=True, exist_ok=True)
    comparison = inputs.comparison
    rows, models, labels = comparison.rows, comparison.models, comparison.labels
    cards = gallery(inputs.subtasks, inputs.scores, models, inputs.gallery)
    context = {
        "title": f"{labels[FINE_TUNED]} on {comparison.dataset}",
        "facts": inputs.facts,
        "links": inputs.links,
        "settings": yaml.safe_dump(dict(inputs.settings), sort_keys=False),
        "sentence": summary_sentence(rows),
        "comparison": comparison,
        "models": models,
        "labels": labels,
        "name": labels[FINE_TUNED],
        "p_value": lambda p: "< .001" if p < 0.001 else f"{p:.3f}".removeprefix("0"),
        "share": lambda part, whole: f"{100 * part / whole:.1f}" if whole else "0.0",
        "opponents": [role for role in OPPONENTS if role in models],
        "headlines": _by_benchmark([row for row in rows if row.headline]),
        "every": _by_benchmark(rows),
        "keys": _key_rows(rows),
        "limit": _plot_limit(rows),
        "tally": Counter(row.vs_base.significance for row in rows),
        "benchmarks": comparison.benchmarks,
        "subtask_plot": plots.subtasks(rows, labels, folder / SUBTASKS),
        "curve_plot": plots.curves(inputs.curves, folder / CURVES),
        "changes": CHANGES,
        "cards": cards,
        "card_counts": Counter(card.change for card in cards),
        "published": published_results(rows, coco=comparison.dataset == "coco"),
        "quarantine": Counter(row.rule for row in inputs.quarantine).most_common(),
        "quarantined": len({(row.row, row.sample_id, row.image) for row in inputs.quarantine}),
    }
    pages.write(folder / PAGE, PAGE, context)
    return folder


def _by_benchmark(rows: Iterable[Row]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.benchmark, []).append(row)
    return groups


def _key_rows(rows: Sequence[Row]) -> list[Row]:
    """The metrics at the top of the page, at most four."""
    found = {(row.benchmark, row.metric, row.name): row for row in rows}
    keys = [found[key] for key in _KEY_METRICS if key in found]
    return (keys + [row for row in rows if row.metric == "i2t_r1"])[:4]


def _plot_limit(rows: Iterable[Row]) -> float:
    """The largest difference within the small interval plots."""
    ends = [1.0]
    for row in rows:
        for difference in (row.vs_base, row.vs_control):
            if row.headline and difference is not None:
                ends += [abs(difference.low), abs(difference.high)]
    return max(ends) * 1.05


def gallery(
    subtasks: Sequence[Subtask],
    scores: Iterable[Score],
    models: Mapping[str, str],
    count: int,
    seed: int = 0,
) -> list[ItemCard]:
    """A random sample of items of each kind, spread evenly over the subtasks.

    Args:
        subtasks: the image-to-text subtasks to sample from.
        scores: the run's scores.
        models: role to name; the kinds compare `base` with `fine_tuned`.
        count: items of each kind.
        seed: of the sample.
    """
    items = {
        (task.benchmark, task.name, item.item): (task, item)
        for task in subtasks
        for item in task.items
    }
    by_item: dict[tuple[str, str, str], dict[str, Score]] = {}
    for score in scores:
        key = (score.benchmark, score.subtask, score.item)
        if score.metric in ("itt", "accuracy") and score.correct is not None and key in items:
            by_item.setdefault(key, {})[score.model] = score
    pools: dict[str, dict[str, list[tuple[str, str, str]]]] = {change: {} for change in CHANGES}
    for key, by_model in by_item.items():
        before, after = (by_model[models[role]].correct for role in ("base", "fine_tuned"))
        if not (before and after):
            change = "fixed" if after else "broken" if before else "wrong"
            pools[change].setdefault(key[1], []).append(key)
    cards = []
    for change, pool in pools.items():
        for key in _sample(pool, count, seed):
            task, item = items[key]
            card = _item_card(change, task, item, [by_item[key][name] for name in models.values()])
            if card.image.problem:
                path = task.path(item)
                log.warning("%s was scored, but cannot be shown: %s", path, card.image.problem)
            else:
                cards.append(card)
    return cards


def _sample(
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


def _item_card(change: str, task: Subtask, item: Item, by_model: Sequence[Score]) -> ItemCard:
    texts = [(text, True) for text in item.positives] + [(text, False) for text in item.negatives]
    return ItemCard(
        change,
        task.benchmark,
        task.name,
        item.item,
        image_card(*task.place(item)),
        [
            ItemText(text, positive, tuple(score.similarities[place] for score in by_model))
            for place, (text, positive) in enumerate(texts)
        ],
        [bool(score.correct) for score in by_model],
    )
