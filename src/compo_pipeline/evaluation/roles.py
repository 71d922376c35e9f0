"""Benchmarks grouped by role: composition, retrieval and zero-shot classification.

Each role has sets, and a set is one metric:

- composition: each benchmark is a set, by the metric that `_COMPOSITION` lists; of another
  benchmark it is the mean of its headline metrics. SugarCrepe counts where SugarCrepe++ was not
  scored, which has its images and negatives with a second caption.
- retrieval: each subtask and each way is a set, by recall at 5.
- zero-shot classification: each set of images and classes is one, by top-1 accuracy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from compo_pipeline.benchmarks.items import ALL, Role
from compo_pipeline.benchmarks.settings import BENCHMARKS
from compo_pipeline.core.records import Score
from compo_pipeline.evaluation.comparison import Pair, Row, compare_means, scored_parts
from compo_pipeline.evaluation.metrics import (
    MetricMean,
    ReportedMetric,
    reported_metrics,
)

ROLES: tuple[Role, ...] = get_args(Role)
ROLE_LABELS: dict[str, str] = {
    "composition": "Composition",
    "retrieval": "Retrieval",
    "zero_shot": "Zero-shot classification",
}
# A benchmark of official files for each role, in commands that score one.
EXAMPLES: dict[Role, str] = {
    "composition": "sugar_crepe_pp",
    "retrieval": "flickr30k",
    "zero_shot": "zero_shot_sets",
}

# Metric, and subtasks or averages, whose mean stands for a benchmark of composition.
_COMPOSITION: dict[str, tuple[tuple[str, str], ...]] = {
    "aro": (("accuracy", "aro4"),),
    "bivlc": (("group", ALL),),
    "coco_counterfactuals": (("group", ALL),),
    "cola": (("image", ALL),),
    "color_swap": (("group", ALL),),
    "crepe": (("accuracy", "average"),),
    "eqben": (("group", "average"),),
    "imagecode": (("t2i", "average"),),
    "mmvp_vlm": (("group", ALL),),
    "spec": (("accuracy", "image2text"), ("t2i", "text2image")),
    "sugar_crepe": (("accuracy", "average"),),
    "sugar_crepe_pp": (("itt", "average"),),
    "svo_probes": (("t2i", "average"),),
    "valse": (("accuracy", "average"),),
    "vl_checklist": (("accuracy", "average"),),
    "whatsup": (("accuracy", "average"),),
    "winoground": (("group", ALL),),
}
# Benchmarks to the one that has their items too.
_CONTAINED = {"sugar_crepe": "sugar_crepe_pp"}
_METRICS: dict[Role, tuple[str, ...]] = {
    "retrieval": ("i2t_r5", "t2i_r5"),
    "zero_shot": ("top1",),
}


@dataclass(frozen=True, slots=True)
class RoleRows:
    """Comparison rows of the metrics of a role (such as retrieval), and of the mean over these.

    Each set has the same weight.

    `unscored` has the labels of sets of which a subtask has no scored item; then there is no mean.
    """

    role: Role
    mean: Row | None
    sets: tuple[Row, ...]
    unscored: tuple[str, ...] = ()


def benchmark_names(role: Role) -> list[str]:
    """Labels of the benchmarks that measure a role, with the name where two labels are equal."""
    own = {name: each.label for name, each in BENCHMARKS.items() if each.role == role}
    count = Counter(own.values())
    return [label if count[label] == 1 else f"{label} ({name})" for name, label in own.items()]


def absent_roles(benchmarks: Iterable[str]) -> list[Role]:
    """The roles (such as retrieval) that none of the given benchmarks measures."""
    found = {BENCHMARKS[name].role for name in benchmarks if name in BENCHMARKS}
    return [role for role in ROLES if role not in found]


def metrics_by_role(metrics: Sequence[ReportedMetric]) -> dict[Role, list[MetricMean]]:
    """For each benchmark role (such as retrieval), the mean metric of each benchmark or subtask.

    Roles without a scored metric are left out.
    """
    by_benchmark: dict[str, list[ReportedMetric]] = {}
    for metric in metrics:
        if metric.role is not None:
            by_benchmark.setdefault(metric.benchmark, []).append(metric)
    found: dict[Role, list[MetricMean]] = {}
    for benchmark, own in by_benchmark.items():
        role = BENCHMARKS[benchmark].role
        if role == "composition" and not _is_contained(benchmark, by_benchmark):
            found.setdefault(role, []).append(_composition_metric(benchmark, own))
        elif role != "composition":
            chosen = [each for each in _subtask_metrics(own) if each.metric in _METRICS[role]]
            found.setdefault(role, []).extend(
                each.mean for each in chosen or _headline_metrics(own)
            )
    return {role: found[role] for role in ROLES if role in found}


def _is_contained(benchmark: str, scored: Mapping[str, Sequence[ReportedMetric]]) -> bool:
    """Whether a benchmark's items are all in another benchmark that was scored completely."""
    other = _CONTAINED.get(benchmark)
    if other is None:
        return False
    return set(_COMPOSITION[other]) <= {(each.metric, each.name) for each in scored.get(other, ())}


def _composition_metric(benchmark: str, metrics: Sequence[ReportedMetric]) -> MetricMean:
    """The metric, or mean of metrics, that represents a benchmark in the composition role.

    Where subtasks are missing that its average needs, it is the mean over those that are there.
    """
    wanted = _COMPOSITION.get(benchmark, ())
    chosen = [each for each in metrics if (each.metric, each.name) in wanted]
    if not chosen and wanted:
        chosen = [each for each in _subtask_metrics(metrics) if each.metric == wanted[0][0]]
    chosen = chosen or _headline_metrics(metrics)
    if len(chosen) == 1:
        return chosen[0].mean
    names = ", ".join(each.name.replace("_", " ") for each in chosen)
    label = f"{chosen[0].title}, mean of {names}"
    return MetricMean.average(label, [each.mean for each in chosen])


def _headline_metrics(metrics: Sequence[ReportedMetric]) -> list[ReportedMetric]:
    """The headline metrics that are averages, else all headline metrics, else subtask metrics."""
    headlines = [each for each in metrics if each.headline]
    averages = [each for each in headlines if each.averaged]
    return averages or headlines or _subtask_metrics(metrics)


def _subtask_metrics(metrics: Sequence[ReportedMetric]) -> list[ReportedMetric]:
    """The metrics of single subtasks and sets, without averages of the benchmark."""
    return [
        each
        for each in metrics
        if each.name not in BENCHMARKS[each.benchmark].averages.get(each.metric, {})
    ]


def compare_roles(
    seeds: Sequence[Iterable[Score]],
    models: Mapping[str, str],
    pairs: Sequence[Pair],
    titles: Mapping[str, str] | None = None,
) -> dict[Role, RoleRows]:
    """Compare models in composition, retrieval and zero-shot: in each set, and in their mean.

    Arguments as for `compare`.

    Raises:
        ValueError: models or seeds were not scored on the same items.
    """
    parts = scored_parts(seeds, models)
    counts = {key: len(part.items) for key, part in parts.items()}
    sets = metrics_by_role(reported_metrics(counts, titles))
    means = {role: MetricMean.average(ROLE_LABELS[role], own) for role, own in sets.items()}
    every = [each for role, own in sets.items() for each in (means[role], *own)]
    rows = iter(compare_means(parts, pairs, every))
    found = {}
    for role, own in sets.items():
        mean, by_set = next(rows), {each.label: next(rows) for each in own}
        scored = tuple(row for row in by_set.values() if row is not None)
        unscored = tuple(label for label, row in by_set.items() if row is None)
        found[role] = RoleRows(role, mean, scored, unscored)
    return found
