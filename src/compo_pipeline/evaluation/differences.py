"""Items that one of two models has right and the other wrong, from their stored scores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from compo_pipeline.benchmarks.items import Item, Subtask, items_by_key
from compo_pipeline.configuration.settings import SettingsError, nearest
from compo_pipeline.evaluation.comparison import (
    as_one_family,
    compare,
    compare_slices,
)
from compo_pipeline.evaluation.evaluate import Comparison
from compo_pipeline.evaluation.protocols import margin
from compo_pipeline.evaluation.settings import DiffSettings
from compo_pipeline.evaluation.slices import ItemSlices
from compo_pipeline.evaluation.suite import Suite
from compo_pipeline.storage.records import PER_CLASS, ItemChange, Score
from compo_pipeline.storage.tables import Table


def chosen_pair(suite: Suite, settings: DiffSettings, models: str) -> tuple[str, str]:
    """Names of the two models that `suite.diff` compares: baseline and model.

    Args:
        suite: what was scored.
        settings: which two.
        models: the list that was scored.

    Raises:
        SettingsError: one of them was not scored, or both are the same.
    """
    scored = suite.names
    command = f"`kedro run --pipeline=benchmark --params models={models}`"
    found = {
        "baseline": scored[0] if settings.baseline is None else settings.baseline,
        "model": scored[-1] if settings.model is None else settings.model,
    }
    for key, name in found.items():
        if name not in scored:
            raise SettingsError(
                f"suite.diff.{key}: no scores of '{name}' are stored for the list '{models}'"
                f"{nearest(name, scored)} (scored: {', '.join(scored)}); add it to "
                f"model_lists.{models} and run {command}"
            )
    if found["baseline"] == found["model"]:
        raise SettingsError(
            f"suite.diff: baseline and model are both '{found['model']}' (scored with the list "
            f"'{models}': {', '.join(scored)}); name two, or score a longer list by {command}"
        )
    return found["baseline"], found["model"]


def model_diff(
    scores: Iterable[Score],
    pair: tuple[str, str],
    slices: ItemSlices,
    smallest: int,
    suite: Comparison,
) -> Comparison:
    """Compare two models in all metrics, on all items and within slices.

    Args:
        scores: of all models of the suite.
        pair: names of baseline and model.
        slices: of the items.
        smallest: slices of fewer items are left out.
        suite: the comparison of all models.
    """
    own = [Table.of(scores, Score).having("model", pair)]
    names, pairs, titles = {name: name for name in pair}, [(pair[1], pair[0])], suite.titles
    rows, sliced = as_one_family(
        compare(own, names, pairs, {}, titles),
        compare_slices(own, names, pairs, slices, smallest, titles),
    )
    models = {name: suite.models[name] for name in pair}
    return Comparison(models, rows, slices=sliced, titles=titles)


def item_changes(
    scores: Sequence[Score], subtasks: Sequence[Subtask], pair: tuple[str, str]
) -> Iterator[ItemChange]:
    """Yield the items that only one of two models gets right, in the order of the scores.

    Args:
        scores: of all models of the suite.
        subtasks: that were scored.
        pair: names of baseline and model.

    Raises:
        SettingsError: an item that was scored is not in the benchmark files any more.
    """
    items = items_by_key(subtasks)
    baseline, model = pair
    table = Table.of(scores, Score)
    before = {_item_key(row): row for row in table.having("model", [baseline])}
    for after in table.having("model", [model]):
        row = before.get(_item_key(after))
        if row is None or row.correct == after.correct:
            continue
        if after.metric == PER_CLASS or row.correct is None or after.correct is None:
            continue
        item = _item_of_score(items, after)
        wrong = row if after.correct else after
        matches = 1 if wrong.metric == "t2i" else len(item.positives)
        yield ItemChange(
            *pair,
            after.benchmark,
            after.subtask,
            after.metric,
            after.item,
            change="fixed" if after.correct else "broken",
            shortfall=-margin(wrong.metric, wrong.similarities, matches),
            image=item.image,
            other_images=item.other_images,
            positives=item.positives,
            negatives=item.negatives,
            baseline_similarities=row.similarities,
            model_similarities=after.similarities,
        )


def _item_key(row: Score) -> tuple[str, str, str, str]:
    """Tuple that identifies the item of a score: benchmark, subtask, metric and item."""
    return row.benchmark, row.subtask, row.metric, row.item


def _item_of_score(items: Mapping[tuple[str, str, str], Item], row: Score) -> Item:
    """The benchmark item of a score; for one caption in retrieval, an item with that caption alone.

    Such a caption is named `<item>#<number>`.
    """
    found = items.get((row.benchmark, row.subtask, row.item))
    if found is not None:
        return found
    name, _, number = row.item.rpartition("#")
    whole = items.get((row.benchmark, row.subtask, name))
    if whole is None or not number.isdecimal() or int(number) >= len(whole.positives):
        raise SettingsError(
            f"benchmarks.sets.{row.benchmark}: {row.subtask} has no item '{row.item}', which was "
            "scored; are these the files that were? Run `kedro run --pipeline=benchmark` again"
        )
    return Item(row.item, whole.image, (whole.positives[int(number)],))
