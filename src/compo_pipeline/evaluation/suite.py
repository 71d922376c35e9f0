"""Benchmark any number of existing models without training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from compo_pipeline.benchmarks.items import Subtask, titles
from compo_pipeline.benchmarks.loading import not_run_labels
from compo_pipeline.benchmarks.settings import BenchmarksSettings
from compo_pipeline.core.compute import choose_device, environment
from compo_pipeline.core.records import Score
from compo_pipeline.core.settings import SettingsError, nearest
from compo_pipeline.core.tables import Table
from compo_pipeline.evaluation.comparison import (
    BASE,
    FINE_TUNED,
    Pair,
    compare,
    merge_comparisons,
    renamed,
)
from compo_pipeline.evaluation.evaluate import Comparison, score_models
from compo_pipeline.evaluation.published import PublishedResults, published_results
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.models.settings import ModelSettings

Entry = TypeVar("Entry")


def reference_rows(comparison: Comparison) -> list[PublishedResults]:
    """Comparison rows with the published values, for each paper.

    Unofficial files have none.
    """
    rows = [row for row in comparison.rows if row.benchmark not in comparison.titles]
    return published_results(rows, coco=False, deviating=comparison.deviating)


def listed_models(
    name: str, lists: Mapping[str, Mapping[str, ModelSettings]]
) -> Mapping[str, ModelSettings]:
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
    models: Mapping[str, Callable[[], LoadedModel]],
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
    return scored.rows, Comparison(
        models=scored.models,
        rows=tuple(compare([scored.rows], names, pairs, scored.chance, labels)),
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
    """Compare trained models with their base, each over several training seeds.

    Args:
        runs: scores and comparison of each seed's run, by label. The base and the benchmark items
            are the same throughout.
        pairs: labels that are compared with one another too, over the same seeds.

    Raises:
        ValueError: models were not scored on the same items or are of several bases, or a label is
            that of the base.
    """
    if BASE in runs:
        raise ValueError(f"'{BASE}' is the name of the base model: give the runs another label")
    first = next(iter(runs.values()))[0][1]
    base = first.models[BASE]
    chance = {
        row.key: row.chance / 100
        for row in first.rows
        if row.chance is not None and not row.averaged
    }
    models, tables = {BASE: base}, []
    for label, seeds in runs.items():
        own = seeds[0][1].models[FINE_TUNED]
        if any(other.models[BASE].fingerprint != base.fingerprint for _, other in seeds):
            raise ValueError(f"{label}: its base model is another one than that of the first run")
        scores, names = [scores for scores, _ in seeds], {BASE: base.name, label: own.name}
        tables.append(compare(scores, names, [(label, BASE)], chance, first.titles))
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


def _relabelled(
    label: str, seeds: Iterable[tuple[Sequence[Score], Comparison]]
) -> Iterator[Table[Score]]:
    """Yield the scores of each seed's trained model, under a label in place of its name."""
    for scores, comparison in seeds:
        name = comparison.models[FINE_TUNED].name
        yield renamed(Table.of(scores, Score).having("model", [name]), label)
