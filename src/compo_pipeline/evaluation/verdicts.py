"""Whether stored verdicts follow from the similarities beside them, see `scoring`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from compo_pipeline.evaluation import protocols
from compo_pipeline.evaluation.benchmarks.items import Item, Subtask, items_by_key
from compo_pipeline.evaluation.scoring import RECALLS
from compo_pipeline.records import GRADED, Score


def check_verdicts(rows: Sequence[Score], subtasks: Iterable[Subtask]) -> None:
    """Check that the verdicts of stored rows follow from their similarities.

    Args:
        rows: of one model.
        subtasks: that were scored.

    Raises:
        ValueError: a similarity is missing or not finite, or the protocol gives another verdict;
            names the first such item.
    """
    scored = {(task.benchmark, task.name): task for task in subtasks}
    items = items_by_key(scored.values())
    gallery = _gallery(rows, items)
    groups: dict[tuple[str, bool, int, int], list[Score]] = {}
    for row in rows:
        if row.correct is None and row.skipped is not None and not row.similarities:
            continue
        matches, length, finite = _expected(row, items, gallery)
        values = row.similarities
        if len(values) != length or not all(map(math.isfinite, values[:finite])):
            raise ValueError(
                f"{_place(row)} has the similarities {list(values)}, expected {length} finite ones"
            )
        if row.metric in GRADED:
            _check_precision(row, matches)
            continue
        task = scored.get((row.benchmark, row.subtask))
        ties_right = task is not None and task.ties_right
        groups.setdefault((row.metric, ties_right, matches, length), []).append(row)
    for (metric, ties_right, matches, _), group in groups.items():
        similarities = np.array([row.similarities for row in group])
        correct = protocols.verdicts(metric, similarities, matches, ties_right=ties_right)
        for row, verdict in zip(group, correct.tolist(), strict=True):
            if row.correct is not verdict:
                raise ValueError(
                    f"{_place(row)} is stored as correct={row.correct}, its similarities "
                    f"{list(row.similarities)} give {verdict}"
                )


def _check_precision(row: Score, matches: int) -> None:
    stored, *cosines = row.similarities
    value = protocols.average_precision(np.array(cosines), matches)
    if row.correct is not None or not math.isclose(value, stored):
        raise ValueError(f"{_place(row)} is stored as {stored}, its similarities give {value}")


_Items = Mapping[tuple[str, str, str], Item]
"""By benchmark, subtask and name."""

_UNKNOWN = Item("", "", (), right_images=0)


def _gallery(rows: Iterable[Score], items: _Items) -> Counter[tuple[str, str, str]]:
    """Number of candidates of retrieval, by benchmark, subtask and direction."""
    found: Counter[tuple[str, str, str]] = Counter()
    for row in rows:
        if row.metric == f"i2t_r{RECALLS[0]}" and row.correct is not None:
            item = items.get((row.benchmark, row.subtask, row.item), _UNKNOWN)
            found[row.benchmark, row.subtask, "i2t"] += len(item.positives)
            found[row.benchmark, row.subtask, "t2i"] += 1
    return found


def _expected(
    row: Score, items: _Items, gallery: Mapping[tuple[str, str, str], int]
) -> tuple[int, int, int]:
    """How many similarities of a row are of matches, how many there are, how many are finite."""
    if row.metric == "tot" or row.metric in protocols.HALF_TRUTH_CHANCES:
        return 1, 3, 3
    if row.metric in protocols.GROUP_CHANCES:
        return 2, 4, 4
    direction, _, k = row.metric.partition("_r")
    name = row.item.rpartition("#")[0] if k and direction == "t2i" else row.item
    item = items.get((row.benchmark, row.subtask, name), _UNKNOWN)
    positives, images = len(item.positives), 1 + len(item.other_images)
    if row.metric in ("accuracy", protocols.STRICT, "itt", "joint"):
        length = positives + len(item.negatives)
        return positives, length, length
    if row.metric in GRADED:
        return item.right_images, 1 + images, 1 + images
    if row.metric == "t2i":
        return 1, images, images
    if k:
        # The k-th best of fewer candidates that do not match is -inf.
        matches = positives if direction == "i2t" else 1
        enough = gallery[row.benchmark, row.subtask, direction] - matches >= int(k)
        return 1, 2, 2 if enough else 1
    return 1, 2, 2


def _place(row: Score) -> str:
    return f"{row.benchmark} {row.subtask} {row.metric}, item '{row.item}'"
