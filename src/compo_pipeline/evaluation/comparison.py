"""Base, control and fine-tuned model side by side: values, intervals, paired differences.

All values are per cent, as the papers print them.

R resamples, S training seeds, n items.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from compo_pipeline.evaluation import statistics
from compo_pipeline.evaluation.benchmarks import Key, ReportedMetric, reported_metrics
from compo_pipeline.evaluation.settings import Bootstrap
from compo_pipeline.records import Score
from compo_pipeline.seeding import numpy_rng

BASE, CONTROL, FINE_TUNED = "base", "control", "fine_tuned"
ROLES = (BASE, CONTROL, FINE_TUNED)
OPPONENTS = (BASE, CONTROL)

Significance = Literal["above", "below", "level"]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its bootstrap interval (95%)."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Difference:
    """The fine-tuned model minus another model, paired on the same items.

    `p` is from McNemar's exact test for one subtask under one seed, else from the bootstrap;
    `p_holm` is corrected for all metrics compared with the same model. McNemar's test takes items
    for independent, which several items of one image are not: there the interval, resampled over
    images, is more conservative. `least_detectable` is the true difference that a test at 5% finds
    with a power of 80%. `gained` and `lost` count the items that only the fine-tuned or only the
    other model has right, over all seeds.
    """

    value: float
    low: float
    high: float
    p: float
    p_holm: float
    least_detectable: float
    gained: int
    lost: int

    @property
    def significance(self) -> Significance:
        """Above or below if the interval excludes zero, else level."""
        if self.low > 0:
            return "above"
        return "below" if self.high < 0 else "level"

    def format(self, decimals: int = 1) -> str:
        """With the interval: `+3.1 [+1.2, +5.0]`."""
        value, low, high = (f"{x:+.{decimals}f}" for x in (self.value, self.low, self.high))
        return f"{value} [{low}, {high}]"


@dataclass(frozen=True, slots=True)
class Row:
    """One metric of all models. `items` were scored, `skipped` could not be; `chance` is None if
    the scores came without chance levels.
    """

    benchmark: str
    metric: str
    name: str
    label: str
    headline: bool
    averaged: bool
    items: int
    skipped: int
    images: int
    chance: float | None
    base: Estimate
    control: Estimate | None
    fine_tuned: Estimate
    vs_base: Difference
    vs_control: Difference | None


@dataclass(frozen=True, eq=False)
class _Part:
    """The scored items of one (metric, subtask): [S, n] per model, and each item's image [n]."""

    right: Mapping[str, NDArray[np.bool_]]
    image: NDArray[np.int64]
    skipped: int


def compare(
    seeds: Sequence[Iterable[Score]],
    models: Mapping[str, str],
    bootstrap: Bootstrap,
    chance: Mapping[Key, float],
    titles: Mapping[str, str] | None = None,
) -> list[Row]:
    """All metrics of one run, or of the same run under several training seeds.

    Args:
        seeds: scores under each training seed, of the same items. With several seeds, intervals
            come from two levels of resampling: seeds, then images.
        models: role (`base`, `control`, `fine_tuned`) to the model's name in the scores; `control`
            is optional.
        bootstrap: number of resamples and their seed.
        chance: chance levels of the subtasks.
        titles: labels of benchmarks whose files are not the official ones.

    Raises:
        ValueError: models or seeds were not scored on the same items.
    """
    tables = [_table(scores) for scores in seeds]
    keys = list(dict.fromkeys(key for _, key in tables[0]))
    benchmarks = dict.fromkeys(benchmark for benchmark, _, _ in keys)
    rows = []
    for benchmark in benchmarks:
        own = [key for key in keys if key[0] == benchmark]
        rows += _compare_benchmark(own, tables, models, bootstrap, chance, titles)
    return with_holm(rows)


def by_role(rows: Iterable[Row]) -> dict[str, dict[str, dict[str, dict[str, float]]]]:
    """Plain values for DVC: role, benchmark, metric, subtask or average."""
    nested: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    for row in rows:
        for role in ROLES:
            estimate: Estimate | None = getattr(row, role)
            if estimate is not None:
                values = nested.setdefault(role, {}).setdefault(row.benchmark, {})
                values.setdefault(row.metric, {})[row.name] = round(estimate.value, 3)
    return nested


_Results = dict[str, tuple[str, bool | None]]
"""Item to its image and whether the model has it right."""


def _table(scores: Iterable[Score]) -> dict[tuple[str, Key], _Results]:
    table: dict[tuple[str, Key], _Results] = {}
    for score in scores:
        key = (score.model, (score.benchmark, score.metric, score.subtask))
        table.setdefault(key, {})[score.item] = (score.group, score.correct)
    return table


def _compare_benchmark(
    keys: Sequence[Key],
    tables: Sequence[Mapping[tuple[str, Key], _Results]],
    models: Mapping[str, str],
    bootstrap: Bootstrap,
    chance: Mapping[Key, float],
    titles: Mapping[str, str] | None,
) -> list[Row]:
    base = [tables[0].get((models[BASE], key), {}) for key in keys]
    named = {group for part in base for group, right in part.values() if right is not None}
    # Sorted: the intervals do not depend on the order of the scores.
    images = {group: place for place, group in enumerate(sorted(named))}
    parts = {key: _part(key, tables, models, images) for key in keys}
    parts = {key: part for key, part in parts.items() if len(part.image)}
    if not parts:
        return []
    draws = _draws(parts, len(images), len(tables), models, bootstrap)
    rows = []
    items = {key: len(parts[key].image) if key in parts else 0 for key in keys}
    for metric in reported_metrics(items, titles):
        members = {
            (metric.benchmark, metric.metric, part): weight
            for part, weight in metric.weights.items()
        }
        if not members.keys() <= parts.keys():
            continue  # an average over fewer subtasks than it names would be another metric
        level = None
        if members.keys() <= chance.keys():
            level = 100 * sum(weight * chance[key] for key, weight in members.items())
        own = {key: parts[key] for key in members}
        rows.append(_row(metric, own, list(members.values()), level, models, draws))
    return rows


def _part(
    key: Key,
    tables: Sequence[Mapping[tuple[str, Key], _Results]],
    models: Mapping[str, str],
    images: Mapping[str, int],
) -> _Part:
    first = tables[0].get((models[BASE], key), {})
    scored = {item: group for item, (group, right) in first.items() if right is not None}
    right: dict[str, NDArray[np.bool_]] = {}
    for role, model in models.items():
        columns = []
        for table in tables:
            results = table.get((model, key), {})
            known = {item for item, (_, correct) in results.items() if correct is not None}
            if known != scored.keys():
                raise ValueError(
                    f"{' '.join(key)}: '{model}' was scored on {len(known)} items, "
                    f"'{models[BASE]}' on {len(scored)}, {len(known & scored.keys())} of them the "
                    "same; a paired comparison needs the same items: run evaluation again"
                )
            columns.append([bool(results[item][1]) for item in scored])
        right[role] = np.array(columns, dtype=np.bool_)
    place = np.array([images[group] for group in scored.values()], dtype=np.int64)
    return _Part(right, place, len(first) - len(scored))


_Draws = Mapping[tuple[Key, str], NDArray[np.floating]]
"""[R] by part and role."""


def _draws(
    parts: Mapping[Key, _Part],
    images: int,
    seeds: int,
    models: Mapping[str, str],
    bootstrap: Bootstrap,
) -> _Draws:
    """Means of every part under every model, on the same resamples."""
    generator = numpy_rng("bootstrap", bootstrap.seed)
    weights = statistics.image_weights(images, bootstrap.resamples, generator)
    shares = statistics.seed_weights(seeds, bootstrap.resamples, generator)
    columns = [(key, role) for key in parts for role in models]
    right = np.zeros((seeds, images, len(columns)), dtype=np.float32)
    items = np.zeros((images, len(columns)), dtype=np.float32)
    for number, (key, role) in enumerate(columns):
        part = parts[key]
        np.add.at(items[:, number], part.image, 1)
        for seed in range(seeds):
            np.add.at(right[seed, :, number], part.image, part.right[role][seed])
    means = 100 * statistics.mean_draws(right, items, weights, shares)
    return {column: means[:, number] for number, column in enumerate(columns)}


def _row(
    metric: ReportedMetric,
    members: Mapping[Key, _Part],
    weights: Sequence[float],
    chance: float | None,
    models: Mapping[str, str],
    draws: _Draws,
) -> Row:
    parts = list(members.values())
    correct = {
        role: np.concatenate([part.right[role].ravel() for part in parts]) for role in models
    }
    return Row(
        benchmark=metric.benchmark,
        metric=metric.metric,
        name=metric.name,
        label=metric.label,
        headline=metric.headline,
        averaged=metric.averaged,
        items=sum(len(part.image) for part in parts),
        skipped=sum(part.skipped for part in parts),
        images=len(np.unique(np.concatenate([part.image for part in parts]))),
        chance=chance,
        **row_statistics(
            {
                role: float(100 * np.dot(weights, [part.right[role].mean() for part in parts]))
                for role in models
            },
            {
                role: statistics.mean_of_parts([draws[key, role] for key in members], weights)
                for role in models
            },
            {role: correct[FINE_TUNED].astype(int) - correct[role] for role in models},
            exact=len(parts) == 1 and len(parts[0].right[BASE]) == 1,
        ),
    )


def row_statistics(
    values: Mapping[str, float],
    draws: Mapping[str, NDArray[np.floating]],
    changes: Mapping[str, NDArray[Any]],
    *,
    exact: bool,
) -> dict[str, Any]:
    """The estimates and differences of a `Row`, by field; `p_holm` is not corrected yet.

    Args:
        values: of each role.
        draws: [R] of each role, on the same resamples.
        changes: [n], what the fine-tuned model has more than each role on each item.
        exact: whether p is from McNemar's test, else from the bootstrap.
    """
    fields: dict[str, Any] = {CONTROL: None, "vs_control": None}
    for role, value in values.items():
        fields[role] = Estimate(value, *statistics.interval(draws[role]))
        if role != FINE_TUNED:
            drawn = draws[FINE_TUNED] - draws[role]
            gained, lost = int((changes[role] > 0).sum()), int((changes[role] < 0).sum())
            p = statistics.mcnemar(gained, lost) if exact else statistics.bootstrap_p(drawn)
            fields[f"vs_{role}"] = Difference(
                values[FINE_TUNED] - value,
                *statistics.interval(drawn),
                p,
                p,
                statistics.least_detectable(float(np.nanstd(drawn))),
                gained,
                lost,
            )
    return fields


def with_holm(rows: Sequence[Row]) -> list[Row]:
    """The rows with `p_holm` filled in, one family of comparisons per opponent."""
    corrected = list(rows)
    for against in ("vs_base", "vs_control"):
        family = [k for k, row in enumerate(corrected) if getattr(row, against) is not None]
        adjusted = statistics.holm([getattr(corrected[k], against).p for k in family])
        for k, p in zip(family, adjusted, strict=True):
            difference = replace(getattr(corrected[k], against), p_holm=p)
            corrected[k] = replace(corrected[k], **{against: difference})
    return corrected
