"""Items that one of two models has right and the other wrong, from their stored scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from compo_pipeline.benchmarks.items import Item, Subtask, items_by_key
from compo_pipeline.configuration.settings import SettingsError
from compo_pipeline.evaluation.protocols import margin
from compo_pipeline.storage.records import PER_CLASS, ItemChange, Score
from compo_pipeline.storage.tables import Table


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
