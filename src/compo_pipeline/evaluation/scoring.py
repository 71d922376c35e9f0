"""From embeddings to rows of `scores`: each protocol applied to the items of a subtask.

What a row's `similarities` hold, and when it is correct:
- accuracy, itt: cosines of the image with the positives, then with the negatives; every
  positive above every negative.
- tot: cos(P1, P2), cos(P1, N), cos(P2, N); the first above the others.
- i2t_r<k>, t2i_r<k>, top<k>, per_class: the best match and the k-th best of the candidates that
  do not match (-inf where there are fewer); the first above the second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from compo_pipeline.evaluation.benchmarks.items import Item, Subtask
from compo_pipeline.evaluation.embed import Embedded, Embedder
from compo_pipeline.evaluation.measures import values
from compo_pipeline.evaluation.protocols import choice, ranking
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.records import PER_CLASS, Score

RECALLS = (1, 5, 10)
TOPS = (1, 5)
_QUERIES_AT_ONCE = 512


@dataclass(frozen=True, slots=True)
class Scored:
    """All rows of one metric of one subtask, and the metric's chance level."""

    benchmark: str
    metric: str
    subtask: str
    chance: float
    rows: tuple[Score, ...]


@dataclass(frozen=True, slots=True)
class _Sheet:
    """Where a protocol writes: one model's rows of one subtask."""

    model: str
    subtask: Subtask

    def rows(
        self,
        metric: str,
        names: Iterable[tuple[str, str]],
        similarities: NDArray[np.floating],
        correct: NDArray[np.bool_],
        subtask: str | None = None,
    ) -> list[Score]:
        """Rows of scored items, `names` being (item, group)."""
        name = subtask or self.subtask.name
        columns = zip(names, similarities.tolist(), correct.tolist(), strict=True)
        return [
            Score(
                self.model, self.subtask.benchmark, name, metric, item, group, tuple(s), right, None
            )
            for (item, group), s, right in columns
        ]

    def skipped(self, metric: str, item: str, group: str, reason: str) -> Score:
        """The row of an item that could not be scored."""
        task = self.subtask
        return Score(self.model, task.benchmark, task.name, metric, item, group, (), None, reason)

    def scored(self, metric: str, chance: float, rows: list[Score]) -> Scored:
        """All rows of a metric of this subtask."""
        return Scored(self.subtask.benchmark, metric, self.subtask.name, chance, tuple(rows))


def score(model: str, subtask: Subtask, embedded: Embedded) -> Iterator[Scored]:
    """Apply every protocol of a subtask to one model's embeddings."""
    for protocol in subtask.protocols:
        yield from _PROTOCOLS[protocol](_Sheet(model, subtask), embedded)


def figures_of(embedder: Embedder, model: LoadedModel) -> dict[str, float]:
    """Every figure of a model on the embedder's subtasks, by its key `benchmark/metric/name`."""
    embedded = embedder(model, model.name)
    return values(
        row
        for subtask in embedder.subtasks
        for scored in score(model.name, subtask, embedded)
        for row in scored.rows
    )


def _image_to_text(sheet: _Sheet, embedded: Embedded) -> Iterator[Scored]:
    task = sheet.subtask
    metric = "accuracy" if all(len(item.positives) == 1 for item in task.items) else "itt"
    kept, rows = _readable(sheet, embedded, (metric,))
    for group in _by_shape(kept):
        images = embedded.images.of(str(task.path(item)) for item in group)
        sides = [
            _cosines(images, embedded.texts.of_many([getattr(item, side) for item in group]))
            for side in ("positives", "negatives")
        ]
        right = choice.image_to_text(*sides)
        rows += sheet.rows(metric, _names(group), np.hstack(sides), right)
    levels = [
        choice.image_to_text_chance(len(item.positives), len(item.negatives)) for item in kept
    ]
    yield sheet.scored(metric, _mean(levels), rows)


def _text_only(sheet: _Sheet, embedded: Embedded) -> Iterator[Scored]:
    # No image takes part, so items whose image is missing are scored too.
    items = sheet.subtask.items
    first, second = (embedded.texts.of(item.positives[k] for item in items) for k in (0, 1))
    negative = embedded.texts.of(item.negatives[0] for item in items)
    cosines = [_dot(first, second), _dot(first, negative), _dot(second, negative)]
    right = choice.text_only(*cosines)
    rows = sheet.rows("tot", _names(items), np.stack(cosines, axis=1), right)
    yield sheet.scored("tot", choice.TEXT_ONLY_CHANCE, rows)


def _retrieval(sheet: _Sheet, embedded: Embedded) -> Iterator[Scored]:
    task = sheet.subtask
    metrics = {way: [f"{way}_r{k}" for k in RECALLS] for way in ("i2t", "t2i")}
    kept, missing_images = _readable(sheet, embedded, metrics["i2t"])
    missing_texts = [
        sheet.skipped(metric, f"{item.item}#{place}", item.image, reason)
        for item, reason in _unreadable(task, embedded)
        for place in range(len(item.positives))
        for metric in metrics["t2i"]
    ]
    images = embedded.images.of(str(task.path(item)) for item in kept)
    texts = [text for item in kept for text in item.positives]
    image_rows = np.arange(len(kept))
    owners = np.repeat(image_rows, np.array([len(item.positives) for item in kept], dtype=np.int64))
    captions = [
        (f"{item.item}#{place}", item.image)
        for item in kept
        for place in range(len(item.positives))
    ]
    ways = (
        ("i2t", _names(kept), missing_images, images, image_rows, owners),
        ("t2i", captions, missing_texts, embedded.texts.of(texts), owners, image_rows),
    )
    candidates = {"i2t": _Candidates.texts(texts, embedded), "t2i": _Candidates(images)}
    for way, names, missing, queries, query_owner, owner in ways:
        best, rivals = _deciding(queries, query_owner, candidates[way], owner, RECALLS)
        for column, (k, metric) in enumerate(zip(RECALLS, metrics[way], strict=True)):
            pairs = np.stack([best, rivals[:, column]], axis=1)
            rows = sheet.rows(metric, names, pairs, pairs[:, 0] > pairs[:, 1])
            rows += [row for row in missing if row.metric == metric]
            matches = np.bincount(owner, minlength=len(kept))[query_owner]
            level = _mean([ranking.chance(len(owner), int(m), k) for m in matches])
            yield sheet.scored(metric, level, rows)


def _zero_shot(sheet: _Sheet, embedded: Embedded) -> Iterator[Scored]:
    task = sheet.subtask
    tops = [k for k in TOPS if k < len(task.classes)]
    metrics = [f"top{k}" for k in tops]
    kept, missing = _readable(sheet, embedded, metrics)
    images = embedded.images.of(str(task.path(item)) for item in kept)
    prompts = embedded.texts.of_many([task.prompts(name) for name in task.classes])
    classifier = _Candidates(ranking.class_embeddings(prompts))
    number = {name: place for place, name in enumerate(task.classes)}
    labels = np.array([number[item.positives[0]] for item in kept], dtype=np.int64)
    best, rivals = _deciding(images, labels, classifier, np.arange(len(number)), tops)
    names = _names(kept)
    for column, (k, metric) in enumerate(zip(tops, metrics, strict=True)):
        pairs = np.stack([best, rivals[:, column]], axis=1)
        rows = sheet.rows(metric, names, pairs, pairs[:, 0] > pairs[:, 1])
        rows += [row for row in missing if row.metric == metric]
        yield sheet.scored(metric, ranking.chance(len(number), 1, k), rows)
    # The same verdicts once more under a subtask per class: their mean is the mean per class.
    pairs = np.stack([best, rivals[:, 0]], axis=1)
    for name, label in number.items():
        own = np.flatnonzero(labels == label)
        part = f"{task.name}/{name}"
        rows = sheet.rows(
            PER_CLASS, [names[k] for k in own], pairs[own], pairs[own, 0] > pairs[own, 1], part
        )
        yield Scored(task.benchmark, PER_CLASS, part, 1 / len(number), tuple(rows))


_PROTOCOLS: dict[str, Callable[[_Sheet, Embedded], Iterator[Scored]]] = {
    "image_to_text": _image_to_text,
    "text_only": _text_only,
    "retrieval": _retrieval,
    "zero_shot": _zero_shot,
}


class _Candidates:
    """Candidates of a ranking, [c, D], compared once where several are the same text.

    Equal texts must give equal similarities to the last bit, or a tie would not be one; a matrix
    product promises that of the same column only.
    """

    def __init__(self, rows: NDArray[np.float32], places: NDArray[np.int64] | None = None) -> None:
        self._rows = rows
        self._places = places

    @classmethod
    def texts(cls, texts: Sequence[str], embedded: Embedded) -> _Candidates:
        distinct = {text: place for place, text in enumerate(dict.fromkeys(texts))}
        places = np.array([distinct[text] for text in texts], dtype=np.int64)
        return cls(embedded.texts.of(distinct), places)

    def similarities(self, queries: NDArray[np.float32]) -> NDArray[np.float32]:
        """[q, D] queries -> [q, c]."""
        distinct: NDArray[np.float32] = queries @ self._rows.T
        return distinct if self._places is None else distinct[:, self._places]


def _deciding(
    queries: NDArray[np.float32],
    query_owner: NDArray[np.int64],
    candidates: _Candidates,
    owner: NDArray[np.int64],
    ks: Sequence[int],
) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    """`ranking.deciding` in blocks of queries, so that no full similarity matrix is held."""
    best: list[NDArray[np.floating]] = [np.empty(0)]
    rivals: list[NDArray[np.floating]] = [np.empty((0, len(ks)))]
    for start in range(0, len(queries), _QUERIES_AT_ONCE):
        block = slice(start, start + _QUERIES_AT_ONCE)
        found = ranking.deciding(
            candidates.similarities(queries[block]), query_owner[block], owner, ks
        )
        best.append(found[0])
        rivals.append(found[1])
    return np.concatenate(best), np.concatenate(rivals)


def _unreadable(task: Subtask, embedded: Embedded) -> list[tuple[Item, str]]:
    paths = ((item, str(task.path(item))) for item in task.items)
    return [(item, embedded.unreadable[p]) for item, p in paths if p in embedded.unreadable]


def _readable(
    sheet: _Sheet, embedded: Embedded, metrics: Iterable[str]
) -> tuple[list[Item], list[Score]]:
    """The items whose image was encoded, and a skipped row per metric of every other item."""
    task = sheet.subtask
    kept = [item for item in task.items if str(task.path(item)) not in embedded.unreadable]
    rows = [
        sheet.skipped(metric, item.item, item.image, reason)
        for metric in metrics
        for item, reason in _unreadable(task, embedded)
    ]
    return kept, rows


def _by_shape(items: Iterable[Item]) -> Iterable[list[Item]]:
    """Items with equal numbers of positives and negatives, which stack into rectangles."""
    groups: dict[tuple[int, int], list[Item]] = {}
    for item in items:
        groups.setdefault((len(item.positives), len(item.negatives)), []).append(item)
    return groups.values()


def _names(items: Iterable[Item]) -> list[tuple[str, str]]:
    return [(item.item, item.image) for item in items]


def _cosines(images: NDArray[np.float32], texts: NDArray[np.float32]) -> NDArray[np.float32]:
    """[n, D] images and [n, t, D] texts -> [n, t]."""
    cosines: NDArray[np.float32] = (images[:, None, :] * texts).sum(axis=2)
    return cosines


def _dot(first: NDArray[np.float32], second: NDArray[np.float32]) -> NDArray[np.float32]:
    product: NDArray[np.float32] = (first * second).sum(axis=1)
    return product


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else float("nan")
