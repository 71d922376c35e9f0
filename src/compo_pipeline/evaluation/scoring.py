"""From embeddings to rows of `scores`: each protocol applied to the items of a subtask.

What a row's `similarities` are, and when it is correct:
- accuracy, itt: cosines of the image with the positives, then with the negatives; every
  positive above every negative. strict_accuracy: the same where ties are right in accuracy and
  wrong in this one.
- t2i: cosines of the text with its image, then with the other images; the first above all others.
- joint: of each image in turn, its cosines with its right text, then with its wrong ones.
- average_precision: the value, then cosines of the text with the right images, then with the wrong
  ones; it has no verdict.
- text, image, group, group_match: cosines of the first image with both texts, then of the second;
  see `protocols.group`.
- half_truth, truth_order: cosines of the image with the full truth, the caption, the half truth;
  see `protocols.half_truth`.
- tot: cos(P1, P2), cos(P1, N), cos(P2, N); the first above the others.
- i2t_r<k>, t2i_r<k>, top<k>, per_class: the best match and the k-th best of the candidates that
  do not match (-inf if there are fewer); the first above the second.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from compo_pipeline.benchmarks.items import Item, Key, Subtask
from compo_pipeline.core.records import PER_CLASS, Score, schema
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.core.tables import Table, grouped
from compo_pipeline.evaluation import protocols
from compo_pipeline.evaluation.embed import Embedded, Tokens, Vectors
from compo_pipeline.evaluation.metrics import metric_values

SCORING = 1
"""Version of scoring: raised where equal items and weights give other scores than before."""

TOPS = (1, 5)
_QUERIES_AT_ONCE = 512
# What is compared at once stays in the processor's cache.
_RANKED_AT_ONCE = 64  # queries
_AT_ONCE = 256  # items

Floats = NDArray[np.floating]
Ints = NDArray[np.int64]
_NO_GROUPS: Mapping[str, str] = MappingProxyType({})
Names = Sequence[tuple[str, str]]
"""(item, group) of each row."""
Skipped = Sequence[tuple[str, str, str]]
"""(item, group, reason) of each row that could not be scored."""


class MetricScores(NamedTuple):
    """Score rows of one metric of one subtask, and the metric's chance level."""

    key: Key
    chance: float
    rows: Table[Score]


class ModelScores(NamedTuple):
    """All score rows of a model, and the chance level of each metric of each subtask."""

    rows: Table[Score]
    chance: dict[Key, float]


def score_model(subtasks: Sequence[Subtask], embedded: Embedded, name: str) -> ModelScores:
    """Score a model on every subtask, from its embeddings.

    `name` is the model's name in the rows.
    """
    groups = _repeated_images(subtasks, embedded)
    found = [
        scored
        for subtask in subtasks
        for scored in score(name, subtask, embedded, groups.get(subtask.benchmark, {}))
    ]
    if not found:
        why = ", ".join(embedded.unmeasured.values())
        raise SettingsError(f"benchmarks: no metric can be measured of '{name}'; not {why}")
    rows = pa.concat_tables([scored.rows.to_arrow() for scored in found]).combine_chunks()
    return ModelScores(Table(Score, rows), {scored.key: scored.chance for scored in found})


def figures_of(subtasks: Iterable[Subtask]) -> list[str]:
    """Names (`benchmark/metric/name`) of the metrics that scoring the subtasks would give.

    Of subtasks whose images are there. No model is needed: a few items are scored by equal
    embeddings.
    """
    ones = Vectors(np.ones((1, 1), dtype=np.float32), defaultdict(int))
    blank = Embedded(ones, {}, ones, Tokens(torch.empty(0, 0), np.empty(0, dtype=np.bool_), {}))
    few = [replace(task, items=_deciding_items(task.items)) for task in subtasks]
    return list(metric_values(score_model(few, blank, "").rows))


def _deciding_items(items: Sequence[Item]) -> tuple[Item, ...]:
    """The first item, and the first with several positives: these decide a subtask's metrics."""
    several = (item for item in items if len(item.positives) > 1)
    return (*items[:1], *islice(several, 1))


def _repeated_images(subtasks: Iterable[Subtask], embedded: Embedded) -> dict[str, dict[str, str]]:
    """For each benchmark, images with equal pixels, mapped to the first such image's name.

    They are one unit of the statistics: the rows of a Parquet file repeat an image that official
    files name several times.
    """
    times = Counter(embedded.images.index.values())
    repeated = {path: row for path, row in embedded.images.index.items() if times[row] > 1}
    first: dict[tuple[str, int], str] = {}
    found: dict[str, dict[str, str]] = {}
    for task in subtasks:
        for item in task.items if repeated else ():
            row = repeated.get(task.paths(item)[0])
            if row is not None:
                name = first.setdefault((task.benchmark, row), item.image)
                if name != item.image:
                    found.setdefault(task.benchmark, {})[item.image] = name
    return found


def score(
    model: str, subtask: Subtask, embedded: Embedded, groups: Mapping[str, str] = _NO_GROUPS
) -> Iterator[MetricScores]:
    """Score one model on one subtask by each of the subtask's protocols.

    Args:
        model: name of the model in the rows.
        subtask: subtask whose items are scored.
        embedded: the model's embeddings.
        groups: names of images, to the name that their rows have as group where it is another one.
    """
    scorer = _Scorer(model, subtask, embedded, groups)
    for protocol in (each for each in subtask.protocols if each not in embedded.unmeasured):
        yield from _PROTOCOLS[protocol](scorer)


class _Scorer:
    """Builds the score rows of one model on one subtask, from the model's embeddings."""

    def __init__(
        self, model: str, subtask: Subtask, embedded: Embedded, groups: Mapping[str, str]
    ) -> None:
        self.model = model
        self._groups = groups
        self.subtask = subtask
        self.texts = embedded.texts
        self.similarities = embedded.similarities
        problems = embedded.problems(subtask)
        self.readable = [item for item in subtask.items if item.item not in problems]
        self.unreadable = [
            (item, problems[item.item]) for item in subtask.items if item.item in problems
        ]
        self.names = self.names_of(self.readable)
        self.skipped = [(item.item, item.image, reason) for item, reason in self.unreadable]
        self._images = embedded.images

    def names_of(self, items: Iterable[Item]) -> Names:
        """Name of each item, and the name that stands for its image among those of equal pixels."""
        return [(item.item, self._groups.get(item.image, item.image)) for item in items]

    def images(self, items: Iterable[Item]) -> Ints:
        """Rows [n, 1] of the items' own images."""
        folder = f"{self.subtask.images}/"
        return self._images.places_of([[folder + item.image for item in items]]).T

    def all_images(self, items: Iterable[Item]) -> Ints:
        """Rows [n, images] of each item's image and other images."""
        return self._images.places_of(list(map(self.subtask.paths, items)))

    def all_texts(self, items: Iterable[Item]) -> Ints:
        """Rows [n, texts] of each item's positives and negatives."""
        return self.texts.places_of([item.positives + item.negatives for item in items])

    def image_vectors(self, items: Iterable[Item]) -> NDArray[np.float32]:
        """Embeddings [n, D] of the items' own images."""
        vectors: NDArray[np.float32] = self._images.rows[self.images(items)[:, 0]]
        return vectors

    def make_rows(
        self,
        metric: str,
        chance: float,
        names: Names,
        similarities: Sequence[Floats],
        correct: NDArray[np.bool_] | None,
        skipped: Skipped = (),
        subtask: str | None = None,
    ) -> MetricScores:
        """Score rows of one metric, skipped items last.

        Args:
            metric: metric of the rows.
            chance: chance level.
            names: names of the scored items, in order.
            similarities: similarities of the scored items in blocks [n, k], which may differ in k.
            correct: verdicts; None where no row is right or wrong.
            skipped: items that could not be scored.
            subtask: name of the subtask, if it is not the scorer's.
        """
        benchmark, subtask = self.subtask.benchmark, subtask or self.subtask.name
        verdicts = [None] * len(names) if correct is None else correct.tolist()
        widths = [np.full(len(block), block.shape[1], np.int32) for block in similarities]
        ends = np.concatenate([np.zeros(1, np.int32), *widths, np.zeros(len(skipped), np.int32)])
        flat = np.concatenate([np.empty(0), *(block.ravel() for block in similarities)])
        kinds, count = schema(Score), len(names) + len(skipped)
        columns = {
            "model": pa.repeat(self.model, count),
            "benchmark": pa.repeat(benchmark, count),
            "subtask": pa.repeat(subtask, count),
            "metric": pa.repeat(metric, count),
            "item": [item for item, _ in names] + [item for item, *_ in skipped],
            "group": [group for _, group in names] + [group for _, group, _ in skipped],
            "similarities": pa.ListArray.from_arrays(
                ends.cumsum(dtype=np.int32), flat, kinds.field("similarities").type
            ),
            "correct": [*verdicts, *[None] * len(skipped)],
            "skipped": [*[None] * len(names), *(reason for *_, reason in skipped)],
        }
        rows = Table(Score, pa.table(columns, schema=kinds))
        return MetricScores((benchmark, metric, subtask), chance, rows)

    def make_ranked_rows(
        self,
        metrics: Mapping[str, float],
        best: Floats,
        rivals: Floats,
        names: Names,
        skipped: Skipped,
    ) -> Iterator[MetricScores]:
        """Yield the score rows of recall at each k, from best matches [q] and rivals [q, k].

        `metrics` has the chance level of each.
        """
        for column, (metric, chance) in enumerate(metrics.items()):
            pairs = np.stack([best, rivals[:, column]], axis=1)
            correct = protocols.ranked(best, rivals[:, column])
            yield self.make_rows(metric, chance, names, [pairs], correct, skipped)


def _image_to_text(scorer: _Scorer) -> Iterator[MetricScores]:
    """Score rows of image-to-text accuracy: the right texts must be closer to the image."""
    single = all(len(item.positives) == 1 for item in scorer.subtask.items)
    yield _choice_of_text(scorer, "accuracy" if single else "itt")


def _strict_image_to_text(scorer: _Scorer) -> Iterator[MetricScores]:
    """Score rows of image-to-text accuracy in which a tie counts as wrong."""
    yield _choice_of_text(scorer, protocols.STRICT)


def _choice_of_text(scorer: _Scorer, metric: str) -> MetricScores:
    """Score rows of one image-to-text metric: each item's image chooses among its texts."""

    def similarities(items: Sequence[Item]) -> Floats:
        return scorer.similarities(scorer.images(items), scorer.all_texts(items))  # [n, t]

    return _choice(
        scorer,
        metric,
        lambda item: (len(item.positives), len(item.negatives)),
        similarities,
    )


def _text_to_image(scorer: _Scorer) -> Iterator[MetricScores]:
    """Score rows of text-to-image accuracy: the text is closest to its own image."""

    def similarities(items: Sequence[Item]) -> Floats:
        texts = scorer.texts.places_of([item.positives[:1] for item in items])
        return scorer.similarities(scorer.all_images(items), texts)  # [n, images]

    yield _choice(scorer, "t2i", lambda item: (1, len(item.other_images)), similarities)


def _joint(scorer: _Scorer) -> Iterator[MetricScores]:
    """Score rows of items with several images, each closest to its own text (What'sUp)."""

    def similarities(items: Sequence[Item]) -> Floats:
        images = scorer.all_images(items)[:, :, None]  # [n, k, 1]
        right = scorer.texts.places_of([item.positives for item in items])[:, :, None]
        wrong = scorer.texts.places_of([item.negatives for item in items])
        texts = np.concatenate([right, wrong.reshape(*right.shape[:2], -1)], axis=2)
        return scorer.similarities(images, texts).reshape(len(items), -1)

    def chance(images: int, negatives: int) -> float:
        return protocols.choice_chance(1, negatives // images) ** images

    def shape(item: Item) -> tuple[int, int]:
        return len(item.positives), len(item.negatives)

    yield _choice(scorer, "joint", shape, similarities, chance)


def _average_precision(scorer: _Scorer) -> Iterator[MetricScores]:
    """Score rows of the average precision with which a text ranks images."""
    metric, rows, chances = "average_precision", [], []
    for item in scorer.readable:
        text = scorer.texts.places_of([item.positives])
        cosines = scorer.similarities(scorer.all_images([item]), text)[0].astype(np.float64)
        value = protocols.average_precision(cosines, item.right_images)
        rows.append(np.array([[value, *cosines]]))
        chances.append(protocols.average_precision_chance(len(cosines), item.right_images))
    yield scorer.make_rows(metric, _mean(chances), scorer.names, rows, None, scorer.skipped)


def _choice(
    scorer: _Scorer,
    metric: str,
    shape: Callable[[Item], tuple[int, int]],
    similarities: Callable[[Sequence[Item]], Floats],
    chance: Callable[[int, int], float] = protocols.choice_chance,
) -> MetricScores:
    """Score rows of a metric in which right candidates must be closer than wrong ones.

    Args:
        scorer: scorer of the subtask.
        metric: metric of the rows.
        shape: numbers of right and wrong candidates of an item.
        similarities: [n, candidates] of items of one shape, the right candidates first.
        chance: level of a shape.
    """
    # Items with equal numbers of candidates are stacked into rectangles.
    shapes: dict[tuple[int, int], int] = {}
    numbers = np.array(
        [shapes.setdefault(shape(item), len(shapes)) for item in scorer.readable], dtype=np.int64
    )
    values: list[Floats] = []
    correct = [np.empty(0, dtype=np.bool_)]
    for (right, _), number in shapes.items():
        items = [scorer.readable[place] for place in np.flatnonzero(numbers == number).tolist()]
        block = np.concatenate([similarities(some) for some in grouped(items, _AT_ONCE)])
        values.append(block)
        ties_right = scorer.subtask.ties_right
        correct.append(protocols.verdicts(metric, block, right, ties_right=ties_right))
    return scorer.make_rows(
        metric,
        _mean(np.array([chance(*each) for each in shapes])[numbers]),
        [scorer.names[place] for place in numbers.argsort(kind="stable").tolist()],
        values,
        np.concatenate(correct),
        scorer.skipped,
    )


def _group(scorer: _Scorer) -> Iterator[MetricScores]:
    """Score rows of Winoground's metrics: text, image, group and group match."""
    items = scorer.readable
    similarities = np.empty((0, 2, 2))
    if items:
        images, texts = scorer.all_images(items)[:, :, None], scorer.all_texts(items)[:, None, :]
        # Sums of two are compared: in the precision of the stored similarities.
        similarities = scorer.similarities(images, texts).astype(np.float64)  # [n, 2, 2]
    for metric, correct in protocols.group(similarities).items():
        chance, rows = protocols.GROUP_CHANCES[metric], similarities.reshape(-1, 4)
        yield scorer.make_rows(metric, chance, scorer.names, [rows], correct, scorer.skipped)


def _half_truth(scorer: _Scorer) -> Iterator[MetricScores]:
    """Score rows of a caption with a true and with a false detail added (half truths)."""
    items = scorer.readable
    similarities: Floats = np.empty((0, 3))
    if items:
        similarities = scorer.similarities(scorer.images(items), scorer.all_texts(items))
    for metric, correct in protocols.half_truth(similarities).items():
        chance = protocols.HALF_TRUTH_CHANCES[metric]
        yield scorer.make_rows(
            metric, chance, scorer.names, [similarities], correct, scorer.skipped
        )


def _text_only(scorer: _Scorer) -> Iterator[MetricScores]:
    """Score rows of text-only accuracy (TOT): two positives are closer than the negative."""

    def similarities(items: Sequence[Item]) -> Floats:
        groups = [(*item.positives[:2], item.negatives[0]) for item in items]
        first, second, negative = scorer.texts.rows_of_groups(groups).swapaxes(0, 1)
        pairs = ((first, second), (first, negative), (second, negative))
        return np.stack([(one * other).sum(axis=1) for one, other in pairs], axis=1)

    # No image takes part: items whose image is missing are scored too.
    items = scorer.subtask.items
    cosines = np.concatenate([similarities(some) for some in grouped(items, _AT_ONCE)])
    correct = protocols.text_only(*cosines.T)
    chance, names = protocols.TEXT_ONLY_CHANCE, scorer.names_of(items)
    yield scorer.make_rows("tot", chance, names, [cosines], correct)


def _retrieval(scorer: _Scorer) -> Iterator[MetricScores]:
    """Score rows of recall at k, from images to captions and from captions to images."""
    items = scorer.readable
    images = scorer.image_vectors(items)
    texts = [text for item in items for text in item.positives]
    captions = [
        (f"{name}#{place}", group)
        for item, (name, group) in zip(items, scorer.names, strict=True)
        for place in range(len(item.positives))
    ]
    skipped_captions = [
        (f"{item.item}#{place}", item.image, reason)
        for item, reason in scorer.unreadable
        for place in range(len(item.positives))
    ]
    image_rows = np.arange(len(items))
    counts = np.array([len(item.positives) for item in items], dtype=np.int64)
    owners = np.repeat(image_rows, counts)
    # Equal texts must give equal similarities to the last bit, or a tie would not be one; a matrix
    # product promises that of the same column only. So each distinct text is compared once.
    distinct = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    columns = None
    if len(distinct) < len(texts):
        columns = np.array([distinct[text] for text in texts], dtype=np.int64)
    candidates = scorer.texts.rows_of(distinct)
    best, rivals = ranking_in_blocks(
        images, image_rows, candidates, owners, protocols.RECALLS, columns
    )
    chances = {f"i2t_r{k}": _recall_chance(len(texts), counts, k) for k in protocols.RECALLS}
    yield from scorer.make_ranked_rows(chances, best, rivals, scorer.names, scorer.skipped)
    best, rivals = ranking_in_blocks(
        scorer.texts.rows_of(texts), owners, images, image_rows, protocols.RECALLS
    )
    ones = np.ones_like(owners)
    chances = {f"t2i_r{k}": _recall_chance(len(items), ones, k) for k in protocols.RECALLS}
    yield from scorer.make_ranked_rows(chances, best, rivals, captions, skipped_captions)


def _zero_shot(scorer: _Scorer) -> Iterator[MetricScores]:
    """Score rows of top-k zero-shot classification, and of top-1 for each class."""
    task, items = scorer.subtask, scorer.readable
    classes = len(task.classes)
    tops = [k for k in TOPS if k < classes]
    prompts = scorer.texts.rows_of_groups([task.prompts(name) for name in task.classes])
    classifier = protocols.class_embeddings(prompts)
    number = {name: place for place, name in enumerate(task.classes)}
    labels = np.array([number[item.positives[0]] for item in items], dtype=np.int64)
    best, rivals = ranking_in_blocks(
        scorer.image_vectors(items), labels, classifier, np.arange(classes), tops
    )
    chances = {f"top{k}": protocols.ranking_chance(classes, 1, k) for k in tops}
    yield from scorer.make_ranked_rows(chances, best, rivals, scorer.names, scorer.skipped)
    # The same results again under a subtask per class: their mean is the mean per class.
    pairs = np.stack([best, rivals[:, 0]], axis=1)
    for name, label in number.items():
        own = np.flatnonzero(labels == label).tolist()
        yield scorer.make_rows(
            PER_CLASS,
            1 / classes,
            [scorer.names[k] for k in own],
            [pairs[own]],
            protocols.ranked(best[own], rivals[own, 0]),
            subtask=f"{task.name}/{name}",
        )


_PROTOCOLS: dict[str, Callable[[_Scorer], Iterator[MetricScores]]] = {
    "image_to_text": _image_to_text,
    "strict_image_to_text": _strict_image_to_text,
    "text_to_image": _text_to_image,
    "joint": _joint,
    "average_precision": _average_precision,
    "group": _group,
    "half_truth": _half_truth,
    "text_only": _text_only,
    "retrieval": _retrieval,
    "zero_shot": _zero_shot,
}


def ranking_in_blocks(
    queries: NDArray[np.float32],
    query_owner: Ints,
    candidates: Floats,
    candidate_owner: Ints,
    ks: Sequence[int],
    columns: Ints | None = None,
) -> tuple[Floats, Floats]:
    """The results of `protocols.ranking`, computed in blocks of queries to save memory.

    `columns` expands distinct candidates to the rows of `candidate_owner`.
    """
    best: list[Floats] = [np.empty(0)]
    rivals: list[Floats] = [np.empty((0, len(ks)))]
    for start in range(0, len(queries), _QUERIES_AT_ONCE):
        block = slice(start, start + _QUERIES_AT_ONCE)
        similarities = queries[block] @ candidates.T
        if columns is not None:
            similarities = similarities[:, columns]
        for few in range(0, len(similarities), _RANKED_AT_ONCE):
            rows = slice(few, few + _RANKED_AT_ONCE)
            found = protocols.ranking(
                similarities[rows], query_owner[block][rows], candidate_owner, ks
            )
            best.append(found[0])
            rivals.append(found[1])
    return np.concatenate(best), np.concatenate(rivals)


def _recall_chance(candidates: int, matches: Ints, k: int) -> float:
    """Mean chance level of recall at k over queries, given their numbers of matches."""
    counts, places = np.unique(matches, return_inverse=True)
    levels = [protocols.ranking_chance(candidates, int(count), k) for count in counts]
    return _mean(np.array(levels)[places])


def _mean(values: Sequence[float] | Floats) -> float:
    """Mean of values, or NaN for no values."""
    return float(np.mean(values)) if len(values) else float("nan")
