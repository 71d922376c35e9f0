"""Compare models by metric: values, confidence intervals and paired differences.

All values are per cent, as the papers print them. `item_changes` finds the items behind a
difference: those that only one of two models gets right.

S training seeds, n items.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from compo_pipeline.benchmarks.items import Item, Key, Subtask, items_by_key
from compo_pipeline.core.records import GRADED, PER_CLASS, ItemChange, Score
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.core.tables import Table
from compo_pipeline.evaluation import statistics
from compo_pipeline.evaluation.metrics import (
    KEY,
    MetricMean,
    reported_metrics,
    score_frame,
)
from compo_pipeline.evaluation.protocols import margin

if TYPE_CHECKING:
    from compo_pipeline.evaluation.slices import ItemSlices


BASE, CONTROL, FINE_TUNED = "base", "control", "fine_tuned"
ROLES = (BASE, CONTROL, FINE_TUNED)
_HEADLINES = 12  # of a model, for DVC
"""The models of a run."""

LEVEL = 0.05
"""Of significance: the share of pages without any true difference that mark one."""
COARSE = 10.0  # points

Significance = Literal["above", "below", "level"]
Pair = tuple[str, str]
"""A model, and the one that it is compared with."""

_Ints = NDArray[np.int64]
_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its 95% interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Difference:
    """Paired difference of two models in one metric, with interval and p-values.

    It is the values of `model` minus those of `against`, on the same items.

    The interval covers other images, and other training seeds if there are several. `p` is from
    McNemar's exact test for one subtask under one seed, else that of the interval; `p_holm` is
    corrected for all comparisons beside it (`with_holm`). McNemar's test takes items for
    independent, which several items of one image are not: there the interval is more conservative.
    `least_detectable` is the true difference that a test at 5% finds with a power of 80%. `gained`
    and `lost` count the items that only the one or only the other model has right, over all seeds.
    """

    model: str
    against: str
    value: float
    low: float
    high: float
    p: float
    p_holm: float
    least_detectable: float
    gained: int
    lost: int
    seeds: int = 1

    @property
    def significance(self) -> Significance:
        """`above` or `below` if the Holm-corrected p is below 5%, else `level`."""
        if self.p_holm >= LEVEL:
            return "level"
        return "above" if self.value > 0 else "below"

    @property
    def coarse(self) -> bool:
        """Whether only true differences of ten points or more could have been detected."""
        return self.least_detectable >= COARSE

    def format(self, decimals: int = 1) -> str:
        """Text of value and interval: `+3.1 [+1.2, +5.0]`, with the number of seeds if several."""
        value, low, high = (f"{x:+.{decimals}f}" for x in (self.value, self.low, self.high))
        return f"{value} [{low}, {high}{f'; {self.seeds} seeds' if self.seeds > 1 else ''}]"


@dataclass(frozen=True, slots=True)
class Row:
    """One metric of all compared models: values, paired differences, chance level and counts.

    `items` were scored, `skipped` could not be; `chance` is None if the scores came without chance
    levels. `values` are by model, `differences` those that were asked for, in their order; neither
    has a model that the metric was not measured of. `slice`
    names the part of the items that it is of, empty for all.
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
    values: dict[str, Estimate]
    differences: tuple[Difference, ...]
    slice: str = ""

    @property
    def key(self) -> Key:
        """Benchmark, metric, and name of the subtask or average."""
        return self.benchmark, self.metric, self.name

    @property
    def difference(self) -> Difference:
        """The first of the row's paired differences."""
        return self.differences[0]

    @property
    def estimate(self) -> Estimate:
        """Value and interval of the compared model, the one that `difference` names as `model`."""
        return self.values[self.difference.model]

    def difference_of(self, model: str) -> Difference | None:
        """The first difference in which a model is compared with another, or None."""
        return next((each for each in self.differences if each.model == model), None)

    def against(self, reference: str) -> Difference | None:
        """The first difference whose reference is a given model, or None if there is none."""
        return next((each for each in self.differences if each.against == reference), None)


@dataclass(frozen=True, eq=False)
class ScoredPart:
    """All models' values for the scored items of a metric and subtask, with indices of the images.

    `values` are per cent, [S, n] per model, `image` is [n]; `items` and `skipped` are names.
    """

    values: Mapping[str, _Floats]
    image: _Ints
    items: Sequence[str]
    skipped: Sequence[str]


def compare(
    seeds: Sequence[Iterable[Score]],
    models: Mapping[str, str],
    pairs: Sequence[Pair],
    chance: Mapping[Key, float],
    titles: Mapping[str, str] | None = None,
    partial: Collection[str] = (),
) -> list[Row]:
    """Compare models in all metrics, under one or several training seeds.

    Returns a row for each metric.

    Args:
        seeds: scores under each training seed, of the same items.
        models: keys of the rows' values to the models' names in the scores.
        pairs: keys of the models whose differences are wanted.
        chance: chance levels of the subtasks.
        titles: labels of benchmarks whose files are not the official ones.
        partial: keys of models without scores of some metrics, whose rows then lack them.

    Raises:
        ValueError: models or seeds were not scored on the same items.
    """
    parts = scored_parts(seeds, models, partial)
    return with_holm(_compare_parts(parts, pairs, chance, titles))


def compare_means(
    scored: Mapping[Key, ScoredPart], pairs: Sequence[Pair], means: Iterable[MetricMean]
) -> list[Row | None]:
    """Compare models in means over benchmarks, or None for a mean with an unscored subtask.

    Items whose images have the same name, in any benchmark, are of one image. Without chance
    levels; `p_holm` is not corrected.
    """
    rows: list[Row | None] = []
    for mean in means:
        parts = [scored[key] for key in mean.weights if key in scored and len(scored[key].items)]
        row = None
        if len(parts) == len(mean.weights):
            graded = any(metric in GRADED for _, metric, _ in mean.weights)
            row = _row(
                *(_renumber_images(parts), list(mean.weights.values()), pairs, graded),
                benchmark="",
                metric="mean",
                name=mean.label,
                label=mean.label,
                headline=False,
                averaged=len(parts) > 1,
                chance=None,
            )
        rows.append(row)
    return rows


def _renumber_images(parts: Sequence[ScoredPart]) -> list[ScoredPart]:
    """Copies of per-item values of subtasks, with images renumbered from 0 without gaps."""
    images = np.unique(np.concatenate([part.image for part in parts]))
    return [replace(part, image=images.searchsorted(part.image)) for part in parts]


def compare_slices(
    seeds: Sequence[Iterable[Score]],
    models: Mapping[str, str],
    pairs: Sequence[Pair],
    slices: ItemSlices,
    smallest: int,
    titles: Mapping[str, str] | None = None,
) -> list[Row]:
    """Compare models in all metrics within every slice of items, with Holm-corrected p-values.

    The correction is over all slices (`as_one_family` corrects them with the rows of all items).
    There are no chance levels.

    Args:
        seeds: seeds, as for `compare`.
        models: models, as for `compare`.
        pairs: pairs, as for `compare`.
        slices: slices of the items.
        smallest: rows of fewer items are left out.
        titles: titles, as for `compare`.
    """
    members: defaultdict[str, dict[Key, ScoredPart]] = defaultdict(dict)
    for key, part in scored_parts(seeds, models).items():
        own = partial(_slices_of, (key[0], key[2]), slices)
        places: defaultdict[str, list[int]] = defaultdict(list)
        for place, item in enumerate(part.items):
            for name in own(item):
                places[name].append(place)
        skipped = [(item, name) for item in part.skipped for name in own(item)]
        for name in {**places, **{name: [] for _, name in skipped}}:
            chosen = np.array(places[name], dtype=np.intp)
            members[name][key] = ScoredPart(
                {model: values.take(chosen, axis=1) for model, values in part.values.items()},
                part.image[chosen],
                [part.items[place] for place in chosen],
                [item for item, other in skipped if other == name],
            )
    rows = [
        replace(row, slice=name)
        for name, parts in sorted(members.items())
        for row in _compare_parts(parts, pairs, {}, titles)
        if row.items >= smallest
    ]
    return with_holm(rows)


def _slices_of(place: tuple[str, str], slices: ItemSlices, item: str) -> Sequence[str]:
    """Names of the slices of an item.

    In retrieval, a caption of an item is <item>#<number>.
    """
    return slices.get((*place, item)) or slices.get((*place, item.rpartition("#")[0]), ())


def run_pairs(roles: Iterable[str]) -> list[Pair]:
    """Pairs of roles that a run compares: the fine-tuned model with base and control."""
    return [(FINE_TUNED, role) for role in roles if role != FINE_TUNED]


def by_model(rows: Iterable[Row]) -> dict[str, dict[str, dict[str, dict[str, float]]]]:
    """Values as nested dictionaries: model, benchmark, metric, then subtask or average."""
    nested: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    for row in rows:
        for model, estimate in row.values.items():
            values = nested.setdefault(model, {}).setdefault(row.benchmark, {})
            values.setdefault(row.metric, {})[row.name] = round(estimate.value, 3)
    return nested


def headline_figures(rows: Sequence[Row]) -> dict[str, dict[str, dict[str, dict[str, float]]]]:
    """The headline values for DVC, nested as by `by_model`: at most twelve for each model.

    Where there are more, each benchmark gives one in turn, averages first.
    """
    benchmarks: dict[str, list[Row]] = {}
    headlines = [row for row in rows if row.headline] or rows
    for row in sorted(headlines, key=lambda row: not row.averaged):
        benchmarks.setdefault(row.benchmark, []).append(row)
    turns = itertools.chain.from_iterable(itertools.zip_longest(*benchmarks.values()))
    return by_model(itertools.islice(filter(None, turns), _HEADLINES))


def run_metrics(rows: Sequence[Row], model: str) -> dict[str, float]:
    """All metrics of one model in per cent, by the name under which MLflow logs them.

    `_headline/...` are the figures of the summary, which the underscore sorts before all others;
    `_headline_vs_base/...`, of the fine-tuned model, their differences from the base in points;
    `test/...` are all figures. The base's own figures are the same in every run: they are in the
    artefact comparison.json.

    Args:
        rows: rows of the comparison.
        model: control or fine_tuned.
    """
    found = {}
    for row in rows:
        estimate = row.values[model]
        # Dots: MLflow shows a section of charts for each prefix before the last slash.
        name = f"{row.benchmark}.{row.metric}.{row.name}"
        if row.headline:
            found[f"_headline/{name}"] = estimate.value
        if row.headline and model == row.difference.model:
            found[f"_headline_vs_base/{name}"] = row.difference.value
        found[f"test/{row.benchmark}/{row.metric}/{row.name}"] = estimate.value
    return {name: round(value, 3) for name, value in found.items()}


def _compare_parts(
    scored: Mapping[Key, ScoredPart],
    pairs: Sequence[Pair],
    chance: Mapping[Key, float],
    titles: Mapping[str, str] | None,
) -> list[Row]:
    """Comparison rows of all metrics and averages, from scored items, with uncorrected p values."""
    rows = []
    for benchmark in dict.fromkeys(benchmark for benchmark, _, _ in scored):
        items = {key: len(part.items) for key, part in scored.items() if key[0] == benchmark}
        kept = [key for key, count in items.items() if count]
        if not kept:
            continue
        parts = dict(zip(kept, _renumber_images([scored[key] for key in kept]), strict=True))
        for metric in reported_metrics(items, titles):
            members = metric.mean.weights
            if not members.keys() <= parts.keys():
                continue  # an average over fewer subtasks than it names would be another metric
            level = None
            if members.keys() <= chance.keys():
                level = 100 * sum(weight * chance[key] for key, weight in members.items())
            own, weights = [parts[key] for key in members], list(members.values())
            rows.append(
                _row(
                    *(own, weights, pairs, metric.metric in GRADED),
                    benchmark=metric.benchmark,
                    metric=metric.metric,
                    name=metric.name,
                    label=metric.label,
                    headline=metric.headline,
                    averaged=metric.averaged,
                    chance=level,
                )
            )
    return rows


def scored_parts(
    seeds: Sequence[Iterable[Score]], models: Mapping[str, str], partial: Collection[str] = ()
) -> dict[Key, ScoredPart]:
    """The scored items of each (metric, subtask).

    Raises an error if models differ in items. `partial` are keys of those that may lack some parts.

    The numbers of their images are ranks of names. A repeated item counts once.
    """
    tables = [Table.of(scores, Score) for scores in seeds]
    frame = score_frame(Table.joined(tables))
    names, frame["item"] = _ranked(frame["item"])
    _, frame["group"] = _ranked(frame["group"])
    frame["seed"] = np.repeat(np.arange(len(tables)), list(map(len, tables)))
    parts = {}
    chosen = frame[frame["model"].isin(models.values())]
    grouped: Any = chosen.groupby(KEY, observed=True, sort=False)
    for key, rows in grouped:
        # In order: the intervals do not depend on the order of the scores, not even by rounding.
        items, places = np.unique(rows["item"], return_inverse=True)
        values, images = {}, np.full(len(items), -1)
        there = set(rows["model"])
        present = {k: name for k, name in models.items() if k not in partial or name in there}
        reference = next(iter(present.values()))
        for model in present.values():
            own = (rows["model"] == model).to_numpy()
            values[model] = np.full((len(tables), len(items)), np.nan)
            values[model][rows["seed"][own], places[own]] = rows["value"][own]
            if model == reference:
                images[places[own]] = rows["group"][own]
            known = ~np.isnan(values[reference][0])
            for scored in ~np.isnan(values[model]):
                if (scored != known).any():
                    raise ValueError(
                        f"{' '.join(key)}: '{model}' was scored on {scored.sum()} items, "
                        f"'{reference}' on {known.sum()}, {(scored & known).sum()} of them the "
                        "same; a paired comparison needs the same items: run evaluation again"
                    )
        parts[key] = ScoredPart(
            {key: 100.0 * values[name].compress(known, axis=1) for key, name in present.items()},
            images[known],
            list(names[items[known]]),
            list(names[items[~known & (images >= 0)]]),
        )
    return parts


def _ranked(names: pd.Series[str]) -> tuple[pd.Index[str], _Ints]:
    """Distinct names in alphabetical order, and the place of each row's name among them."""
    order = names.cat.categories.argsort()
    return names.cat.categories[order], order.argsort()[names.cat.codes]


def renamed(scores: Iterable[Score], label: str) -> Table[Score]:
    """Scores of one model, under another name."""
    table = Table.of(scores, Score)
    return table.with_columns(model=pa.chunked_array([pa.repeat(label, len(table))]))


def _row(
    parts: Sequence[ScoredPart],
    weights: Sequence[float],
    pairs: Sequence[Pair],
    graded: bool,
    **named: Any,
) -> Row:
    """The comparison row of a mean over subtasks, from their items and the row's names."""
    by_model = {
        model: [statistics.Part(part.values[model], part.image) for part in parts]
        for model in parts[0].values
    }
    one_table = len(parts) == 1 and all(len(of) == 1 for of in parts[0].values.values())
    values, differences = row_statistics(
        by_model, pairs, weights, exact=one_table and not graded, verdicts=not graded
    )
    return Row(
        **named,
        items=sum(len(part.image) for part in parts),
        skipped=sum(len(part.skipped) for part in parts),
        images=len(np.unique(np.concatenate([part.image for part in parts]))),
        values=values,
        differences=differences,
    )


def row_statistics(
    parts: Mapping[str, Sequence[statistics.Part]],
    pairs: Sequence[Pair],
    weights: Sequence[float],
    *,
    exact: bool,
    verdicts: bool = True,
) -> tuple[dict[str, Estimate], tuple[Difference, ...]]:
    """Values and paired differences of models, with intervals and uncorrected p values.

    Args:
        parts: values of each model on the same items.
        pairs: models whose differences are wanted, where both have values.
        weights: weights of the parts. Their sum is 1.
        exact: whether p is from McNemar's test, else that of the interval.
        verdicts: whether all values are 0 or 100.
    """
    values = {}
    for model, own in parts.items():
        level = statistics.level(own, weights, verdicts=verdicts)
        values[model] = Estimate(level.value, *level.interval)
    differences = []
    for model, against in pairs:
        if not {model, against} <= parts.keys():
            continue
        ours, theirs = parts[model], parts[against]
        found = statistics.difference(ours, theirs, weights, verdicts=verdicts)
        both = list(zip(ours, theirs, strict=True))
        gained = sum(int((own.values > other.values).sum()) for own, other in both)
        lost = sum(int((own.values < other.values).sum()) for own, other in both)
        p = statistics.mcnemar(gained, lost) if exact else found.p
        differences.append(
            Difference(
                model,
                against,
                found.value,
                *found.interval,
                p=p,
                p_holm=p,
                least_detectable=found.least_detectable,
                gained=gained,
                lost=lost,
                seeds=found.seeds,
            )
        )
    return values, tuple(differences)


def with_holm(rows: Sequence[Row]) -> list[Row]:
    """The rows with `p_holm` corrected over all of their differences as one family."""
    family = [(place, each) for place, row in enumerate(rows) for each in row.differences]
    corrected: list[list[Difference]] = [[] for _ in rows]
    for (place, each), p in zip(
        family, statistics.holm([each.p for _, each in family]), strict=True
    ):
        corrected[place].append(replace(each, p_holm=p))
    return [replace(row, differences=tuple(own)) for row, own in zip(rows, corrected, strict=True)]


def as_one_family(*tables: Sequence[Row]) -> list[tuple[Row, ...]]:
    """Several tables of rows, with `p_holm` corrected over all tables as one family."""
    corrected = iter(with_holm([row for rows in tables for row in rows]))
    return [tuple(itertools.islice(corrected, len(rows))) for rows in tables]


def merge_comparisons(tables: Sequence[Sequence[Row]]) -> list[Row]:
    """Merge comparisons of the same metrics into one, with `p_holm` corrected over all.

    A model that several have keeps the values that it has in the first.

    Raises:
        ValueError: they are not of the same metrics.
    """
    by_metric = [{(row.key, row.slice): row for row in rows} for rows in tables]
    if any(each.keys() != by_metric[0].keys() for each in by_metric):
        raise ValueError("the models were not scored on the same metrics: run evaluation again")
    rows = []
    for metric, first in by_metric[0].items() if by_metric else ():
        parts = [each[metric] for each in by_metric]
        values: dict[str, Estimate] = {}
        for part in parts:
            values |= {name: each for name, each in part.values.items() if name not in values}
        differences = tuple(each for part in parts for each in part.differences)
        rows.append(replace(first, values=values, differences=differences))
    return with_holm(rows)


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
