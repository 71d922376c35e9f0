"""Benchmark any number of existing models without training, next to published results of papers."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple, TypeVar

import yaml

from compo_pipeline.benchmarks import retrieval
from compo_pipeline.benchmarks.items import Subtask, titles
from compo_pipeline.benchmarks.loading import not_run_labels
from compo_pipeline.benchmarks.settings import BenchmarksSettings
from compo_pipeline.benchmarks.suites import SUITES, aggregates_of
from compo_pipeline.core.compute import choose_device, environment
from compo_pipeline.core.records import Score
from compo_pipeline.core.settings import SettingsError, nearest, parse
from compo_pipeline.core.tables import Table
from compo_pipeline.evaluation.comparison import (
    BASE,
    FINE_TUNED,
    Pair,
    Row,
    compare,
    merge_comparisons,
    renamed,
)
from compo_pipeline.evaluation.evaluate import ComparedModel, Comparison, score_models
from compo_pipeline.evaluation.scorers import Scorer
from compo_pipeline.evaluation.settings import EvaluationSettings, ListedModel
from compo_pipeline.models.loading import LoadedModel

Entry = TypeVar("Entry")


def reference_rows(comparison: Comparison) -> list[PublishedResults]:
    """Comparison rows with the published values, for each paper.

    Unofficial files have none.
    """
    rows = [row for row in comparison.rows if row.benchmark not in comparison.titles]
    return published_results(rows, coco=False, deviating=comparison.deviating)


def listed_models(
    name: str, lists: Mapping[str, Mapping[str, ListedModel]]
) -> Mapping[str, ListedModel]:
    """Settings of the models in a list of `model_lists`, the baseline first.

    Raises:
        SettingsError: there is no such list, or no model in it.
    """
    if not (models := find_entry(name, "models", lists, "model_lists")):
        raise SettingsError(f"model_lists.{name}: it is empty; expected models by name")
    return models


def find_entry(name: str, key: str, known: Mapping[str, Entry], where: str) -> Entry:
    """Value of a name in a mapping of settings.

    An error names the nearest if it is absent.

    Args:
        name: name to search.
        key: YAML key of the name.
        known: values by name.
        where: YAML key of the names.

    Raises:
        SettingsError: there is no such name.
    """
    if name not in known:
        raise SettingsError(
            f"{key}: there is no '{name}' in {where}{nearest(name, known)} "
            f"(allowed: {', '.join(known)})"
        )
    return known[name]


def score_suite(
    subtasks: Sequence[Subtask],
    models: Mapping[str, Callable[[], LoadedModel | Scorer]],
    settings: EvaluationSettings,
    benchmarks: BenchmarksSettings,
    store: Path,
) -> tuple[Table[Score], Comparison]:
    """Score a list of models on every subtask, and compare each with the first.

    Args:
        subtasks: subtasks to score.
        models: loaders by name, the baseline first. One model is in memory at a time.
        settings: batches, precision.
        benchmarks: benchmarks that were requested, for the record.
        store: folder of stored embeddings, and of the rows until the process ends.
    """
    scored, labels = score_models(subtasks, models, settings, store), titles(subtasks)
    baseline, *others = scored.models
    names, pairs = {name: name for name in scored.models}, [(name, baseline) for name in others]
    partial = [name for name, model in scored.models.items() if model.not_measured]
    return scored.rows, Comparison(
        models=scored.models,
        rows=tuple(compare([scored.rows], names, pairs, scored.chance, labels, partial)),
        audits=scored.audits,
        titles=labels,
        suite=benchmarks.suite or "",
        not_run=not_run_labels(benchmarks),
        settings={
            "precision": settings.precision,
            "ties": benchmarks.ties,
            "EXIF orientation": "applied" if benchmarks.exif else "ignored",
            "environment": environment(choose_device(settings.device, key="evaluation.device")),
        },
    )


def compare_runs(
    runs: Mapping[str, Sequence[tuple[Sequence[Score], Comparison]]], pairs: Sequence[Pair] = ()
) -> Comparison:
    """Compare trained models with their own bases, each over several training seeds.

    Each base is followed by its models. A single base is named `base`, several by their weights.

    Args:
        runs: scores and comparison of each seed's run, by label. The benchmark items are the same
            throughout.
        pairs: labels that are compared with one another too, over the same seeds.

    Raises:
        ValueError: models were not scored on the same items, the seeds of a label are of several
            bases, or a label is that of the base.
    """
    if BASE in runs:
        raise ValueError(f"'{BASE}' is the name of the base model: give the runs another label")
    (first_label, [(_, first), *_]), *_ = runs.items()
    by_base: dict[str, list[str]] = {}
    for label, seeds in runs.items():
        for _, comparison in seeds:
            if other := dict(_items_of(comparison) ^ _items_of(first)):
                raise ValueError(
                    f"{label}: its items of {', '.join(sorted(other))} are not those of "
                    f"{first_label}: run evaluation again"
                )
        fingerprint, *others = {comparison.models[BASE].fingerprint for _, comparison in seeds}
        if others:
            raise ValueError(f"{label}: its seeds are of several base models: run them again")
        by_base.setdefault(fingerprint, []).append(label)
    chance = {
        row.key: row.chance / 100
        for row in first.rows
        if row.chance is not None and not row.averaged
    }
    models: dict[str, ComparedModel] = {}
    tables = []
    for labels in by_base.values():
        base = runs[labels[0]][0][1].models[BASE]
        key = BASE if len(by_base) == 1 else f"base {base.weights}"
        if key in {*models, *runs}:
            key += f" of {labels[0]}"
        models[key] = replace(base, label=key)
        for label in labels:
            own = runs[label][0][1].models[FINE_TUNED]
            scores, names = [scores for scores, _ in runs[label]], {key: base.name, label: own.name}
            tables.append(compare(scores, names, [(label, key)], chance, first.titles))
            models[label] = replace(own, label=label)
    for pair in pairs:
        both = zip(*(_relabelled(label, runs[label]) for label in pair), strict=True)
        scores = [Table.joined(tables) for tables in both]
        tables.append(compare(scores, {one: one for one in pair}, [pair], chance, first.titles))
    return Comparison(
        models,
        tuple(merge_comparisons(tables)),
        audits=first.audits,
        titles=first.titles,
        suite=first.suite,
        not_run=first.not_run,
    )


def _items_of(comparison: Comparison) -> set[tuple[str, tuple[str, str]]]:
    """Benchmarks of a run with the hashes of their items and images."""
    return {(each.benchmark, (each.items, each.images)) for each in comparison.scored}


def _relabelled(
    label: str, seeds: Iterable[tuple[Sequence[Score], Comparison]]
) -> Iterator[Table[Score]]:
    """Yield the scores of each seed's trained model, under a label in place of its name."""
    for scores, comparison in seeds:
        name = comparison.models[FINE_TUNED].name
        yield renamed(Table.of(scores, Score).having("model", [name]), label)


_IMAGES_COUNT = ("coco", "flickr30k")


@dataclass(frozen=True, slots=True)
class Paper:
    """Published results of the models of one base in a paper's tables.

    Attributes:
        id: short name of the paper and the base, or of an ablation's table.
        title: title of the paper and the base.
        base: short name of the base model.
        shown: whether pages show the results beside those of a run.
        source: where the results are from.
        models: names of the models.
        methods: method that trained each model; `none` for a model as it is.
        data: data that each model was trained on.
        runs: options of `kedro run` that measure a model here. Others are of other authors.
        bases: names in `model_lists` of the models that need no training.
        hours: GPU hours of a training that the paper states.
        tables: by table, one value for each model by `benchmark/metric/name`: per cent, or None if
            there is none.
    """

    id: str
    title: str
    base: str
    shown: bool
    source: str
    models: tuple[str, ...]
    methods: dict[str, str]
    data: dict[str, str]
    runs: dict[str, str]
    bases: dict[str, str]
    hours: dict[str, float]
    tables: dict[str, dict[str, tuple[float | None, ...]]]

    @property
    def results(self) -> dict[str, tuple[float | None, ...]]:
        """Values of all tables, for each model from the first that has one."""
        merged: dict[str, tuple[float | None, ...]] = {}
        for columns in self.tables.values():
            for key, values in columns.items():
                pairs = zip(merged.get(key, values), values, strict=True)
                merged[key] = tuple(new if old is None else old for old, new in pairs)
        return merged


class PublishedResults(NamedTuple):
    """A paper, and the run's comparison rows beside the paper's values of the same metrics."""

    paper: Paper
    rows: tuple[tuple[Row, tuple[float | None, ...]], ...]


@cache
def read_published() -> tuple[tuple[Paper, ...], dict[str, int], dict[str, str]]:
    """Papers with their results, official item counts and hashes of texts, from `published.yml`.

    The counts are by `benchmark/name`, the hashes (`evaluate.texts_hash`) by `benchmark/subtask`.
    """
    content = yaml.safe_load(files(__package__).joinpath("published.yml").read_text("utf-8"))
    papers = tuple(parse(Paper, paper, "papers") for paper in content["papers"])
    return papers, content["items"], content["texts"]


def is_partial(row: Row, benchmark: str) -> bool:
    """Whether items of a metric were skipped, or their number is not the official one.

    Args:
        row: row of the metric.
        benchmark: benchmark whose official count is compared.
    """
    count = row.images if benchmark in _IMAGES_COUNT else row.items
    return row.skipped > 0 or count != read_published()[1].get(f"{benchmark}/{row.name}", count)


def published_results(
    rows: Iterable[Row], *, coco: bool, deviating: Container[str] = ()
) -> list[PublishedResults]:
    """The papers that have values of a run's metrics, with these values.

    Only metrics over the complete official files with all items scored have any: none for rendered
    scenes, for a part of the official images, or where ties are counted otherwise.

    Args:
        rows: the run's comparison.
        coco: whether the dataset's own retrieval split is that of MS-COCO.
        deviating: benchmarks that were not scored as in their official run.
    """
    papers, counts, _ = read_published()
    complete: dict[str, Row] = {}
    for row in rows:
        benchmark = row.benchmark
        if benchmark in deviating:
            continue
        if benchmark == retrieval.NAME and coco:
            benchmark = "coco"
        if f"{benchmark}/{row.name}" in counts and not is_partial(row, benchmark):
            complete[f"{benchmark}/{row.metric}/{row.name}"] = row
    compared = []
    for paper in papers:
        results = paper.results if paper.shown else {}
        pairs = ((row, results.get(key)) for key, row in complete.items())
        found = tuple((row, values) for row, values in pairs if values is not None)
        if found:
            compared.append(PublishedResults(paper, found))
    return compared


@dataclass(frozen=True, slots=True)
class AggregateRow:
    """One mean over benchmarks from a paper's tables, with its value for each model.

    Attributes:
        label: label of the aggregate.
        source: place of the aggregate in the paper.
        values: values in per cent, None where a model has no value of a member. None of any model
            if a member is missing.
        missing: members that were not run on the official files.
        partial: members that were not scored as in the paper: then it is not the paper's figure.
    """

    label: str
    source: str
    values: tuple[float | None, ...]
    missing: tuple[str, ...]
    partial: tuple[str, ...] = ()

    @property
    def remark(self) -> str:
        """Why the mean cannot be compared with the paper's value, empty if it can be compared."""
        if self.missing:
            return f"not complete: {', '.join(self.missing)} not run"
        if self.partial:
            return f"not the paper's figure: {', '.join(self.partial)} not scored as there"
        return ""


def aggregate_rows(comparison: Comparison) -> list[AggregateRow]:
    """Means over benchmarks of the comparison's suite, or all complete means without a suite.

    A mean is complete if all of its members were scored. Benchmarks whose files are not the
    official ones are members of none.
    """
    rows = [row for row in comparison.rows if row.benchmark not in comparison.titles]
    values = {
        name: {row.key: row.values[name].value for row in rows if name in row.values}
        for name in comparison.models
    }
    items = {row.key: row.items for row in rows}
    deviating = {
        row.key
        for row in comparison.rows
        if row.benchmark in comparison.deviating or is_partial(row, row.benchmark)
    }
    found = []
    for one in aggregates_of(comparison.suite):
        missing = [member for member in one.members if not items.keys() >= set(member)]
        partial = [
            member
            for member in one.members
            if member not in missing
            and any(key in deviating or one.items not in (None, items[key]) for key in member)
        ]
        if comparison.suite in SUITES or not missing:
            keys = {key for member in one.members for key in member}
            means = (
                ()
                if missing
                else tuple(one.mean(own) if keys <= own.keys() else None for own in values.values())
            )
            names = (tuple(dict.fromkeys(map(one.member_name, own))) for own in (missing, partial))
            found.append(AggregateRow(one.label, one.source, means, *names))
    return found
