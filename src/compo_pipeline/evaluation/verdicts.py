"""Whether stored verdicts follow from the similarities beside them, see `scoring`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from compo_pipeline.benchmarks.averages import set_of
from compo_pipeline.evaluation import protocols
from compo_pipeline.storage.records import GRADED, PER_CLASS, Score, ScoredItem

if TYPE_CHECKING:
    from compo_pipeline.benchmarks.items import Subtask
    from compo_pipeline.evaluation.slices import ItemSlices


def scored_items(
    subtasks: Iterable[Subtask], slices: ItemSlices = MappingProxyType({})
) -> Iterator[ScoredItem]:
    """Yield the candidate counts and slices of each benchmark item, as records to store."""
    for task in subtasks:
        for item in task.items:
            yield ScoredItem(
                benchmark=task.benchmark,
                subtask=task.name,
                item=item.item,
                positives=len(item.positives),
                negatives=len(item.negatives),
                other_images=len(item.other_images),
                right_images=item.right_images,
                ties_right=task.ties_right,
                slices=tuple(slices.get((task.benchmark, task.name, item.item), ())),
            )


def check_verdicts(rows: Sequence[Score], items: Iterable[ScoredItem]) -> None:
    """Raise an error unless each metric has all items and each verdict fits its similarities.

    Args:
        rows: of one model.
        items: that were scored.

    Raises:
        ValueError: a similarity is missing or not finite, the protocol gives another verdict, or a
            metric lacks an item; names the first such item.
    """
    known = {(item.benchmark, item.subtask, item.item): item for item in items}
    ties = {key[:2] for key, item in known.items() if item.ties_right}
    gallery = _candidate_counts(rows, known)
    groups: dict[tuple[str, bool, int, int], list[Score]] = {}
    for row in rows:
        if row.correct is None and row.skipped is not None and not row.similarities:
            continue
        matches, length, finite = _expected_counts(row, known, gallery)
        values = row.similarities
        if len(values) != length or not all(map(math.isfinite, values[:finite])):
            raise ValueError(
                f"{_row_in_words(row)} has the similarities {list(values)}, expected {length} "
                "finite ones"
            )
        if row.metric in GRADED:
            _check_precision(row, matches)
            continue
        ties_right = (row.benchmark, row.subtask) in ties
        groups.setdefault((row.metric, ties_right, matches, length), []).append(row)
    for (metric, ties_right, matches, _), group in groups.items():
        similarities = np.array([row.similarities for row in group])
        correct = protocols.verdicts(metric, similarities, matches, ties_right=ties_right)
        for row, verdict in zip(group, correct.tolist(), strict=True):
            if row.correct is not verdict:
                raise ValueError(
                    f"{_row_in_words(row)} is stored as correct={row.correct}, its similarities "
                    f"{list(row.similarities)} give {verdict}"
                )
    _check_complete(rows, known)


def _check_complete(rows: Iterable[Score], items: _Items) -> None:
    """Raise an error unless the rows of each metric are of just the items of its subtask."""
    wanted: dict[tuple[str, str], list[ScoredItem]] = {}
    for item in items.values():
        wanted.setdefault((item.benchmark, item.subtask), []).append(item)
    # A subtask without a row has no metric.
    found: dict[tuple[str, str], dict[str, set[str]]] = {key: {} for key in wanted}
    scored: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        # A class is a part of its subtask, without the items that could not be scored.
        subtask = set_of(row.subtask) if row.metric == PER_CLASS else row.subtask
        key = row.benchmark, subtask
        found.setdefault(key, {}).setdefault(row.metric, set()).add(row.item)
        if row.skipped is None:
            scored.setdefault(key, set()).add(row.item)
    for key, metrics in found.items():
        own = wanted.get(key, [])
        for metric, names in metrics.items() or [("", set[str]())]:
            expected = {item.item for item in own}
            if metric == PER_CLASS:
                expected &= scored[key]
            elif metric.startswith("t2i_r"):
                expected = {f"{item.item}#{k}" for item in own for k in range(item.positives)}
            if apart := expected ^ names:
                raise ValueError(
                    f"{' '.join(key)} {metric} has rows of {len(names)} items, expected "
                    f"{len(expected)}: item '{min(apart)}' is in one of both alone"
                )


def _check_precision(row: Score, matches: int) -> None:
    """Raise an error unless a stored average precision follows from its similarities."""
    stored, *cosines = row.similarities
    value = protocols.average_precision(np.array(cosines), matches)
    if row.correct is not None or not math.isclose(value, stored):
        raise ValueError(
            f"{_row_in_words(row)} is stored as {stored}, its similarities give {value}"
        )


_Items = Mapping[tuple[str, str, str], ScoredItem]
"""By benchmark, subtask and name."""

_UNKNOWN = ScoredItem(
    benchmark="",
    subtask="",
    item="",
    positives=0,
    negatives=0,
    other_images=0,
    right_images=0,
    ties_right=False,
    slices=(),
)


def _candidate_counts(rows: Iterable[Score], items: _Items) -> Counter[tuple[str, str, str]]:
    """Number of retrieval candidates, by benchmark, subtask and direction."""
    found: Counter[tuple[str, str, str]] = Counter()
    for row in rows:
        if row.metric == f"i2t_r{protocols.RECALLS[0]}" and row.correct is not None:
            item = items.get((row.benchmark, row.subtask, row.item), _UNKNOWN)
            found[row.benchmark, row.subtask, "i2t"] += item.positives
            found[row.benchmark, row.subtask, "t2i"] += 1
    return found


def _expected_counts(
    row: Score, items: _Items, gallery: Mapping[tuple[str, str, str], int]
) -> tuple[int, int, int]:
    """Expected numbers of a row's similarities: of matching ones, of all, and of finite ones."""
    if row.metric == "tot" or row.metric in protocols.HALF_TRUTH_CHANCES:
        return 1, 3, 3
    if row.metric in protocols.GROUP_CHANCES:
        return 2, 4, 4
    direction, _, k = row.metric.partition("_r")
    name = row.item.rpartition("#")[0] if k and direction == "t2i" else row.item
    item = items.get((row.benchmark, row.subtask, name), _UNKNOWN)
    positives, images = item.positives, 1 + item.other_images
    if row.metric in ("accuracy", protocols.STRICT, "itt", "joint"):
        length = positives + item.negatives
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


def _row_in_words(row: Score) -> str:
    """Text that names a score row in error messages."""
    return f"{row.benchmark} {row.subtask} {row.metric}, item '{row.item}'"
