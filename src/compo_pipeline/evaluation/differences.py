"""Items that one of two models gets right and the other wrong, from their stored scores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from compo_pipeline.benchmarks.items import Item, Subtask, items_by_key
from compo_pipeline.core.records import PER_CLASS, ItemChange, Score
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.core.tables import Table
from compo_pipeline.evaluation.protocols import margin

_ITEM = ["benchmark", "subtask", "metric", "item"]


def item_changes(
    scores: Iterable[Score], subtasks: Sequence[Subtask], pair: tuple[str, str]
) -> Iterator[ItemChange]:
    """Yield the items that only one of two models gets right, in the order of the scores.

    Args:
        scores: scores of all models of the suite.
        subtasks: subtasks that were scored.
        pair: names of baseline and model.

    Raises:
        SettingsError: an item that was scored is not in the benchmark files any more.
    """
    items = items_by_key(subtasks)
    before, after = (Table.of(scores, Score).having("model", [name]) for name in pair)
    theirs, ours = map(_verdicts, (before, after))
    both = ours.merge(theirs, on=_ITEM, suffixes=("", "_before"))
    changed = both[both["correct"] != both["correct_before"]]
    rows = after.take(changed["place"].to_numpy()), before.take(changed["place_before"].to_numpy())
    for own, other in zip(*rows, strict=True):
        item = _item_of_score(items, own)
        wrong = other if own.correct else own
        matches = 1 if wrong.metric == "t2i" else len(item.positives)
        yield ItemChange(
            *pair,
            own.benchmark,
            own.subtask,
            own.metric,
            own.item,
            change="fixed" if own.correct else "broken",
            shortfall=-margin(wrong.metric, wrong.similarities, matches),
            image=item.image,
            other_images=item.other_images,
            positives=item.positives,
            negatives=item.negatives,
            baseline_similarities=other.similarities,
            model_similarities=own.similarities,
        )


def _verdicts(table: Table[Score]) -> pd.DataFrame:
    """Names, verdict and place of the scored rows of one model, each item once."""
    frame: pd.DataFrame = table.to_arrow().select([*_ITEM, "correct"]).to_pandas()
    frame["place"] = np.arange(len(frame))
    own = frame[frame["correct"].notna() & (frame["metric"] != PER_CLASS)]
    return own.drop_duplicates(_ITEM, keep="last")


def _item_of_score(items: Mapping[tuple[str, str, str], Item], row: Score) -> Item:
    """The benchmark item of a score, in retrieval an item with only its caption.

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
