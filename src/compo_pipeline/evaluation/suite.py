"""Any number of models on the configured benchmarks, without a training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from compo_pipeline.benchmarks import zero_shot_sets
from compo_pipeline.benchmarks.items import titles
from compo_pipeline.benchmarks.loading import places
from compo_pipeline.benchmarks.registry import BENCHMARKS
from compo_pipeline.benchmarks.settings import BenchmarksSettings
from compo_pipeline.configuration.settings import SettingsError, nearest, parse
from compo_pipeline.evaluation.comparison import BASE, FINE_TUNED, Row, compare, joined
from compo_pipeline.evaluation.contamination import TrainingRows, overlaps
from compo_pipeline.evaluation.evaluate import BenchmarkItems, Comparison, score_models
from compo_pipeline.evaluation.metrics import Key
from compo_pipeline.evaluation.published import Paper, is_partial, published_results
from compo_pipeline.evaluation.settings import ComparisonSet, EvaluationSettings
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.storage.records import Score
from compo_pipeline.storage.tables import Table


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A named mean over benchmarks; a member is a metric, or several of equal weight."""

    label: str
    members: tuple[tuple[Key, ...], ...]

    def name(self, member: tuple[Key, ...]) -> str:
        """A member's benchmark, with the subtask if further members are of it."""
        benchmark, _, subtask = member[0]
        alone = sum(other[0][0] == benchmark for other in self.members) == 1
        label = BENCHMARKS[benchmark].label
        return label if alone else f"{label} {subtask.replace('_', ' ')}"


def _retrieval(metric: str) -> tuple[tuple[Key, ...], ...]:
    """The retrieval sets of FSC-CLIP."""
    sets = {"coco": "karpathy", "flickr30k": "karpathy", "coco_counterfactuals": "retrieval"}
    return tuple(((benchmark, metric, subtask),) for benchmark, subtask in sets.items())


def _classification(sets: Sequence[str]) -> tuple[tuple[Key, ...], ...]:
    return tuple(((zero_shot_sets.NAME, "top1", name),) for name in sets)


AGGREGATES = (
    Aggregate(
        "FSC-CLIP's Comp, mean of 11 benchmarks",
        (
            (("aro", "accuracy", "aro4"),),
            (("crepe", "accuracy", "average"),),
            (("eqben", "group", "average"),),
            (("imagecode", "t2i", "average"),),
            (("spec", "accuracy", "image2text"), ("spec", "t2i", "text2image")),
            (("sugar_crepe", "accuracy", "by_group"),),
            (("svo_probes", "t2i", "average"),),
            (("valse", "accuracy", "average"),),
            (("vl_checklist", "accuracy", "average"),),
            (("whatsup", "accuracy", "average"),),
            (("winoground", "group", "all"),),
        ),
    ),
    Aggregate("FSC-CLIP's I2T, mean R@1 of 3 sets", _retrieval("i2t_r1")),
    Aggregate("FSC-CLIP's T2I, mean R@1 of 3 sets", _retrieval("t2i_r1")),
    Aggregate("FSC-CLIP's ZS, mean top-1 of 21 sets", _classification(zero_shot_sets.ZS21)),
    Aggregate("CLIC's ZS-10, mean top-1 of 10 sets", _classification(zero_shot_sets.ZS10)),
    Aggregate(
        "C2LIP's SugarCrepe++, mean of the ten ITT and TOT scores",
        ((("sugar_crepe_pp", "itt", "average"),), (("sugar_crepe_pp", "tot", "average"),)),
    ),
)


COMPOSITIONAL = (
    *AGGREGATES[0].members,
    (("sugar_crepe_pp", "itt", "average"),),
    (("bivlc", "group", "all"),),
    (("coco_counterfactuals", "group", "all"),),
    (("cola", "image", "all"),),
    (("color_swap", "group", "all"),),
    (("mmvp_vlm", "group", "all"),),
)
"""The metric of each compositional benchmark that stands for it in the trade-off."""


@dataclass(frozen=True, slots=True)
class AggregateRow:
    """An aggregate of all models, per cent; without values if a member is `missing`, as it was not
    run, or `partial`, as it was not scored as in an official run.
    """

    label: str
    values: tuple[float, ...]
    missing: tuple[str, ...]
    partial: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Suite:
    """Any number of models on the benchmarks, as stored on disk.

    Attributes:
        comparison: of each model with the first one, the baseline; audits are of its tokenizer.
        precision: of the towers.
        ties: how equal similarities count.
        exif: whether images were turned upright.
        not_run: labels of optional benchmarks whose files are not there.
        references: values from result files.
        unmatched: a line about each that has no counterpart.
        environment: where the models were scored.
    """

    comparison: Comparison
    precision: str
    ties: str
    exif: bool = True
    not_run: tuple[str, ...] = ()
    references: tuple[Paper, ...] = ()
    unmatched: tuple[str, ...] = ()
    environment: str = ""

    @property
    def names(self) -> list[str]:
        """Names of the models."""
        return list(self.comparison.models)

    def values(self, model: str) -> dict[Key, float]:
        """Figures of a model, per cent."""
        return {row.key: row.values[model].value for row in self.comparison.rows}

    @property
    def aggregates(self) -> list[AggregateRow]:
        """The aggregates of which a member was run on the official files."""
        values = [
            {k: v for k, v in self.values(name).items() if k[0] not in self.comparison.titles}
            for name in self.names
        ]
        found = []
        for one in AGGREGATES:
            missing = [member for member in one.members if not set(member) <= values[0].keys()]
            partial = [member for member in one.members if self._partial & set(member)]
            if len(missing) < len(one.members):
                whole = not missing and not partial
                means = tuple(_aggregate(one, own) for own in values) if whole else ()
                names = (tuple(map(one.name, members)) for members in (missing, partial))
                found.append(AggregateRow(one.label, means, *names))
        return found

    @property
    def _partial(self) -> set[Key]:
        """The metrics that were not scored as in an official run, on all of its items."""
        return {
            row.key
            for row in self.comparison.rows
            if row.benchmark in self.comparison.deviating or is_partial(row, row.benchmark)
        }

    @property
    def trade_off(self) -> tuple[Aggregate, tuple[Aggregate, ...]]:
        """The mean over the compositional benchmarks that were run, and those to plot it against:
        over zero-shot sets, and over retrieval both ways. One without members was not run.
        """
        rows = self.comparison.rows
        keys = {row.key for row in rows}
        sets = [row.key for row in rows if row.metric == "top1" and not row.averaged]
        recalls = [row.key for row in rows if row.metric in ("i2t_r1", "t2i_r1")]
        above = tuple(member for member in COMPOSITIONAL if keys.issuperset(member))
        return Aggregate("compositionality", above), (
            Aggregate("zero-shot top-1", tuple((key,) for key in sets)),
            Aggregate("retrieval R@1", tuple((key,) for key in recalls)),
        )

    def means(self, aggregate: Aggregate) -> dict[str, float]:
        """An aggregate of the models, and of the reference models that have all of its members."""
        found = {name: _aggregate(aggregate, self.values(name)) for name in self.names}
        for paper in () if self.comparison.titles else self.references:
            for place, name in enumerate(paper.models):
                values: dict[Key, float] = {}
                for key, by in paper.results.items():
                    benchmark, metric, part = key.split("/", 2)
                    if (value := by[place]) is not None:
                        values[benchmark, metric, part] = value
                if all(set(member) <= values.keys() for member in aggregate.members):
                    label = f"{name} ({paper.title.partition(',')[0]})"
                    found[label] = _aggregate(aggregate, values)
        return found

    @property
    def reference_rows(self) -> list[tuple[Paper, list[tuple[Row, Values]]]]:
        """Values of papers and result files beside the rows of the same metric.

        They need all items of the official files and the official rule for ties, as in
        `published_results`. Benchmarks whose files are not the official ones have none.
        """
        titles = self.comparison.titles
        rows = [row for row in self.comparison.rows if row.benchmark not in titles]
        found: list[tuple[Paper, list[tuple[Row, Values]]]] = [
            (one.paper, list(one.rows))
            for one in published_results(rows, coco=False, deviating=self.comparison.deviating)
        ]
        for paper in self.references:
            own = [
                (row, paper.results["/".join(row.key)])
                for row in rows
                if "/".join(row.key) in paper.results and row.key not in self._partial
            ]
            found += [(paper, own)] if own else []
        return found

    @property
    def same_models(self) -> list[str]:
        """A line per model with the weights and the figures of one before it."""
        found, models = [], self.comparison.models
        for place, name in enumerate(self.names):
            for other in self.names[:place]:
                same = models[name].fingerprint == models[other].fingerprint
                if same and self.values(name) == self.values(other):
                    found.append(
                        f"{name} is the same model as {other} (equal weights and "
                        "figures): count it once"
                    )
                    break
        return found

    def to_json(self) -> dict[str, Any]:
        """Plain mappings and lists."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Suite:
        """Read what `to_json` wrote."""
        return parse(cls, content, "suite")


Values = tuple[float | None, ...]
"""Of each model of a paper."""


def _aggregate(aggregate: Aggregate, values: Mapping[Key, float]) -> float:
    """Mean of the members of an aggregate, each the mean of its metrics."""
    parts = [sum(values[key] for key in member) / len(member) for member in aggregate.members]
    return sum(parts) / len(parts)


def listed_models(name: str, lists: Mapping[str, Any]) -> dict[str, ModelSettings]:
    """The models of a list, the baseline first.

    Args:
        name: of the list (`models`).
        lists: the YAML key `model_lists`: names of models to their settings, by list.

    Raises:
        SettingsError: there is no such list, a model cannot be configured so, or two are the same.
    """
    models = _named(name, "models", lists, "model_lists")
    if not models:
        raise SettingsError(f"model_lists.{name}: it is empty; expected models by name")
    found: dict[str, ModelSettings] = {}
    for model, values in models.items():
        own = parse(ModelSettings, values or {}, f"model_lists.{name}.{model}")
        if same := [other for other, known in found.items() if known == own]:
            raise SettingsError(
                f"model_lists.{name}.{model}: it is the same model as '{same[0]}', with equal "
                "settings; remove one"
            )
        found[model] = own
    return found


def named_set(name: str, sets: Mapping[str, Any]) -> ComparisonSet:
    """The set of runs of a name.

    Args:
        name: of the set (`set`).
        sets: the YAML key `comparison_sets`.

    Raises:
        SettingsError: there is no such set, or a cell cannot be configured so.
    """
    chosen = _named(name, "set", sets, "comparison_sets")
    return parse(ComparisonSet, chosen, f"comparison_sets.{name}")


def _named(name: str, key: str, known: Mapping[str, Any], where: str) -> Any:
    """The entry of a YAML key `where` that another one names."""
    if name not in known:
        raise SettingsError(
            f"{key}: there is no '{name}' in {where}{nearest(name, known)} "
            f"(allowed: {', '.join(known)})"
        )
    return known[name]


def score_suite(
    items: BenchmarkItems,
    models: Mapping[str, Callable[[], LoadedModel]],
    settings: EvaluationSettings,
    benchmarks: BenchmarksSettings,
    store: Path,
    known: TrainingRows,
) -> tuple[Table[Score], Suite]:
    """Score models on every subtask and compare each with the first.

    Args:
        items: what is scored, with the slices that `known` decides.
        models: loaders by name, the baseline first; one model is in memory at a time.
        settings: batches, precision.
        benchmarks: which benchmarks, for the record.
        store: folder of stored embeddings, and of the rows until the process ends.
        known: what identifies training rows, whose overlap with the items is counted.
    """
    subtasks = items.subtasks
    scored, audits = score_models(subtasks, models, settings, store)
    baseline, labels = next(iter(scored)), titles(subtasks)
    compared = []
    for name in list(scored)[1:] or [baseline]:
        pair = dict.fromkeys((baseline, name))
        rows = Table.joined([scored[each].rows for each in pair])
        pairs = [(name, baseline)] if name != baseline else []
        compared.append(
            compare([rows], {each: each for each in pair}, pairs, scored[baseline].chance, labels)
        )
    comparison = Comparison(
        models={name: own.compared(name) for name, own in scored.items()},
        rows=tuple(joined(compared)),
        audits=tuple(audits),
        overlaps=tuple(overlaps(subtasks, known, settings.workers, items.slices))
        if known.names
        else (),
        titles=labels,
    )
    suite = Suite(
        comparison,
        precision=f"images {settings.image_precision}, texts {settings.text_precision}",
        ties=benchmarks.ties,
        exif=benchmarks.exif,
        not_run=tuple(place.benchmark.label for place in places(benchmarks) if not place.exists),
    )
    return Table.joined([own.rows for own in scored.values()]), suite


def compare_runs(runs: Mapping[str, Sequence[tuple[Sequence[Score], Comparison]]]) -> Suite:
    """The base model and any number of trained ones, each under several training seeds.

    Args:
        runs: scores and comparison of each seed's run, by label. The base and the benchmark items
            are the same throughout.

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
    comparison = Comparison(models, tuple(joined(tables)), audits=first.audits, titles=first.titles)
    return Suite(comparison, precision="", ties="")
