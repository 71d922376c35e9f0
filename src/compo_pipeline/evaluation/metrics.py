"""Reported metrics with their labels: values of every subtask, and averages over subtasks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from compo_pipeline.benchmarks.items import ALL, Key, Role, mean_of_set, set_of
from compo_pipeline.benchmarks.settings import BENCHMARKS
from compo_pipeline.core.records import GRADED, PER_CLASS, Score
from compo_pipeline.core.tables import Table
from compo_pipeline.evaluation import protocols

KEY = ["benchmark", "metric", "subtask"]
_NAMES = [*KEY, "model", "item", "group"]

METRIC_LABELS = {
    "accuracy": "",
    protocols.STRICT: "ties wrong",
    "itt": "ITT",
    "tot": "TOT",
    "t2i": "",
    "half_truth": "",
    "truth_order": "full order",
    "joint": "",
    "average_precision": "mAP",
    "text": "text score",
    "image": "image score",
    "group": "group score",
    "group_match": "GroupMatch",
    "top1": "top-1",
    "top5": "top-5",
    PER_CLASS: "mean per class",
    **{f"i2t_r{k}": f"image to text R@{k}" for k in (1, 5, 10)},
    **{f"t2i_r{k}": f"text to image R@{k}" for k in (1, 5, 10)},
}


def benchmark_labels(titles: Mapping[str, str] | None = None) -> dict[str, str]:
    """Labels of the benchmarks by name.

    `titles` replaces the labels of unofficial files.
    """
    return {name: benchmark.label for name, benchmark in BENCHMARKS.items()} | dict(titles or {})


@dataclass(frozen=True, slots=True)
class MetricMean:
    """Weighted mean over subtasks, of one or several benchmarks, of the mean over their items.

    `weights` has the weight of each subtask; their sum is 1.
    """

    label: str
    weights: Mapping[Key, float]

    @classmethod
    def average(cls, label: str, parts: Sequence[MetricMean]) -> MetricMean:
        """The mean of several means with equal weights."""
        weights: dict[Key, float] = defaultdict(float)
        for part in parts:
            for key, weight in part.weights.items():
                weights[key] += weight / len(parts)
        return cls(label, dict(weights))


@dataclass(frozen=True, slots=True)
class ReportedMetric:
    """A benchmark's reported metric: one subtask, or a weighted average over subtasks.

    `weights` has the weight of each subtask; their sum is 1.
    """

    benchmark: str
    metric: str
    name: str
    weights: Mapping[str, float]
    title: str

    @property
    def role(self) -> Role | None:
        """What the benchmark measures, such as composition, or None if it is not registered."""
        known = BENCHMARKS.get(self.benchmark)
        return known.role if known is not None else None

    @property
    def mean(self) -> MetricMean:
        """The metric as a `MetricMean`, which names benchmark and metric of each subtask."""
        parts = {(self.benchmark, self.metric, part): own for part, own in self.weights.items()}
        return MetricMean(self.label, parts)

    @property
    def averaged(self) -> bool:
        """Whether the metric is a mean over several subtasks."""
        return self.weights.keys() != {self.name}

    @property
    def headline(self) -> bool:
        """Whether summaries show the metric."""
        known = BENCHMARKS.get(self.benchmark)
        return known is not None and known.headline(self.metric, self.name)

    @property
    def label(self) -> str:
        """Display name of the metric in reports."""
        known = BENCHMARKS.get(self.benchmark)
        unnamed = (ALL,) if known is None else known.unnamed
        words = [METRIC_LABELS.get(self.metric, self.metric)]
        words.append("" if self.name in unnamed else self.name.replace("_", " "))
        if known is not None and known.subtask_in_label == "first":
            words.reverse()
        return " ".join(word for word in (self.title, *words) if word)


def reported_metrics(
    items: Mapping[Key, int], titles: Mapping[str, str] | None = None
) -> list[ReportedMetric]:
    """Metrics of every scored subtask, and averages whose subtasks were all scored.

    Subtasks named `<set>/<part>` are not reported singly: `<set>` is the mean over its parts
    (`mean_of_set`).

    Args:
        items: number of scored items by benchmark, metric and subtask.
        titles: labels of benchmarks whose files are not the official ones.
    """
    scored: dict[tuple[str, str], dict[str, int]] = {}
    for (benchmark, metric, subtask), count in items.items():
        scored.setdefault((benchmark, metric), {})[subtask] = count
    found = []
    for (benchmark, metric), subtasks in scored.items():
        parts: dict[str, list[str]] = {}
        for subtask in subtasks:
            parts.setdefault(set_of(subtask), []).append(subtask)
        sets = {name: mean_of_set(members) for name, members in parts.items()}
        means = dict(sets)
        known = BENCHMARKS.get(benchmark)
        averages = known.averages.get(metric, {}) if known else {}
        for name, mean in averages.items():
            if set(mean.subtasks) <= sets.keys():
                means[name] = mean.resolve(sets)
        title = (titles or {}).get(benchmark) or (known.label if known else benchmark)
        # Subtasks as their averages list them, then the averages.
        listed = [name for mean in averages.values() for name in mean.subtasks]
        order = {name: place for place, name in enumerate((*listed, *averages, ALL))}
        found += [
            ReportedMetric(benchmark, metric, name, means[name].weights(subtasks), title)
            for name in sorted(means, key=lambda name: order.get(name, -1))
        ]
    return found


def score_frame(scores: Iterable[Score]) -> pd.DataFrame:
    """Names of scores as categories, and `value`: from 0 (wrong) to 1, NaN if not scored."""
    table = Table.of(scores, Score).to_arrow()
    frame: pd.DataFrame = table.select(_NAMES).to_pandas(categories=_NAMES)
    frame["value"] = table["correct"].cast("float64").to_numpy()
    graded = frame["metric"].isin(GRADED).to_numpy()
    similarities = table["similarities"].filter(pa.array(graded)).to_pylist()
    frame.loc[graded, "value"] = [own[0] if own else np.nan for own in similarities]
    return frame


def metric_values(scores: Iterable[Score]) -> dict[str, float]:
    """All reported metrics of one model in per cent, by `benchmark/metric/name`.

    Items that could not be scored are left out.
    """
    scored = score_frame(scores).dropna(subset="value").groupby(KEY, observed=True, sort=False)
    values: dict[Any, list[float]] = {key: own.tolist() for key, own in scored["value"]}
    means = {key: sum(found) / len(found) for key, found in values.items()}
    return {
        f"{one.benchmark}/{one.metric}/{one.name}": 100
        * sum(weight * means[key] for key, weight in one.mean.weights.items())
        for one in reported_metrics({key: len(found) for key, found in values.items()})
    }
