"""The ledger of published results: what each value of the papers is here, by which run."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from compo_pipeline.benchmarks import retrieval
from compo_pipeline.core.files import read_json, read_json_or_none
from compo_pipeline.core.provenance import CommandOptions
from compo_pipeline.core.settings import SettingsError, nearest, parse, speed_keys
from compo_pipeline.evaluation.comparison import FINE_TUNED, Estimate, Row
from compo_pipeline.evaluation.evaluate import Comparison
from compo_pipeline.evaluation.settings import EvaluationSettings, ListedModel
from compo_pipeline.evaluation.suite import (
    Paper,
    compare_runs,
    find_entry,
    is_partial,
    read_published,
)
from compo_pipeline.training.settings import TrainingSettings
from compo_pipeline.tuning.cells import COMPARISON, load_runs, read_globals

RESULTS = Path("data/07_model_output")
SUITE = "suite.json"
_NOT_RUN = "not run"
_Measured = tuple[Estimate | None, str]
_PUBLISHED = "published"  # the variant that trains on all rows
# Options that change neither weights nor scores. Benchmarks are judged by what was scored of them.
_WITHOUT_EFFECT = frozenset(
    {"dataset", "method", "variant", "seed", "data.root", "evaluation.control"}
    | {f"training.{key}" for key in speed_keys(TrainingSettings)}
    | {f"evaluation.{key}" for key in speed_keys(EvaluationSettings)}
)
_PARTS_WITHOUT_EFFECT = frozenset(
    "attention benchmarks monitoring prepare promotion registration remote serving tracking".split()
)
_EXIF = "benchmarks.exif"


@dataclass(frozen=True, slots=True)
class LedgerCell:
    """A published value and the measured one.

    Attributes:
        metric: `benchmark/metric/name`.
        published: value in the paper, per cent.
        measured: the value here with its interval; None if there is none that can stand beside it.
        remark: why there is none.
    """

    metric: str
    published: float
    measured: Estimate | None = None
    remark: str = ""

    @property
    def difference(self) -> float | None:
        """The measured minus the published value, in points."""
        return None if self.measured is None else self.measured.value - self.published


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """A model of a paper's table that a command here measures.

    Attributes:
        table: id of the table.
        title: title of the table.
        model: name of the model in the paper.
        command: the command that measures it.
        hours: GPU hours that the paper states for its training, None if it states none.
        folders: folders of the runs that measured it, one for each seed.
        note: what else there is to know of them.
        cells: all values that the paper has of it.
    """

    table: str
    title: str
    model: str
    command: str
    hours: float | None
    folders: tuple[str, ...]
    note: str
    cells: tuple[LedgerCell, ...]

    @property
    def differences(self) -> list[float]:
        """Differences of the cells that are measured, in points."""
        found = (cell.difference for cell in self.cells)
        return [each for each in found if each is not None]


@dataclass(frozen=True, slots=True)
class _Found:
    """Results on disk of a model: those of its runs, or the reason why there are none."""

    reason: str = _NOT_RUN
    folders: tuple[Path, ...] = ()
    comparison: Comparison | None = None
    model: str = FINE_TUNED
    note: str = ""


def read_ledger(
    lists: Mapping[str, Mapping[str, ListedModel]], table: str | None = None
) -> list[LedgerEntry]:
    """The models of the papers that a command here measures, those of the cheapest first.

    Models that need no training are the cheapest, those of unknown cost the last.

    Args:
        lists: `model_lists`.
        table: a block of `published.yml`, or a table of a paper, that alone is wanted.

    Raises:
        SettingsError: there is no such table.
    """
    papers = read_published()[0]
    known = dict.fromkeys(name for paper in papers for name in (paper.id, *paper.tables))
    if table is not None and table not in known:
        raise SettingsError(
            f"--table: there is no '{table}'{nearest(table, known)} (known: {', '.join(known)})"
        )

    @cache  # tables share commands
    def find(text: str, base: str | None) -> _Found:
        options = _options(text)
        return _find_runs(options) if base is None else _find_base(options, base, lists)

    entries = []
    for paper in papers:
        chosen = paper.results if table in (None, paper.id) else paper.tables.get(table, {})
        for model, text in paper.runs.items():
            found = find(text, paper.bases.get(model))
            entries.append(_entry(paper, model, chosen, found))
    entries = [each for each in entries if each.cells]
    return sorted(entries, key=lambda each: float("inf") if each.hours is None else each.hours)


def count_others() -> tuple[int, int]:
    """Number of the cells of models that no command here measures, and of these models."""
    columns = [
        [values[place] for values in paper.results.values()]
        for paper in read_published()[0]
        for place, model in enumerate(paper.models)
        if model not in paper.runs
    ]
    return sum(value is not None for column in columns for value in column), len(columns)


def _entry(
    paper: Paper,
    model: str,
    results: Mapping[str, tuple[float | None, ...]],
    found: _Found,
) -> LedgerEntry:
    """A model of a paper with its published values in `results`, and what was measured of them."""
    measured = dict(_values(found.comparison, found.model)) if found.comparison else {}
    absent = None, "not scored" if measured else found.reason
    place = paper.models.index(model)
    values = {metric: own[place] for metric, own in results.items()}
    return LedgerEntry(
        paper.id,
        paper.title,
        model,
        f"kedro run {paper.runs[model]}",
        0.0 if model in paper.bases else paper.hours.get(model),
        tuple(map(str, found.folders)),
        found.note,
        tuple(
            LedgerCell(metric, value, *measured.get(metric, absent))
            for metric, value in values.items()
            if value is not None
        ),
    )


def _options(text: str) -> CommandOptions:
    """Environment and parameters, as text, of the options of a command."""
    parser = argparse.ArgumentParser()
    for name in ("--env", "--pipeline", "--params"):
        parser.add_argument(name)
    given = parser.parse_args(shlex.split(text))
    params = given.params.split(",") if given.params else []
    return CommandOptions(given.env, dict(each.split("=", 1) for each in params))


def _find_base(
    options: CommandOptions, name: str, lists: Mapping[str, Mapping[str, ListedModel]]
) -> _Found:
    """The scores of a model in the suite of its list."""
    listed = options.params["models"]
    model = find_entry(listed, "models", lists, "model_lists")[name]
    folder = RESULTS / "benchmark" / listed
    if not (folder / SUITE).is_file():
        return _Found()
    suite = _read(folder / SUITE)
    if name not in suite.models or suite.models[name].weights != model.name:
        return _Found(f"{folder} has no {name}")
    if (precision := suite.settings.get("precision")) != EvaluationSettings().precision:
        return _Found(f"{folder} is scored in {precision}")
    return _Found(folders=(folder,), comparison=suite, model=name)


def _find_runs(options: CommandOptions) -> _Found:
    """The runs of a recipe with its own settings, over all seeds."""
    given = {"variant": "default", **read_globals(options.env or "base", "--env"), **options.params}
    parts = {*given["variant"].split("+")} - {"default"}
    runs: dict[str, list[Path]] = {}
    reason = _NOT_RUN
    for file in sorted((RESULTS / given["dataset"] / given["method"]).glob(f"*/*/{COMPARISON}")):
        folder, variant = file.parent, file.parent.parent.name
        if {*variant.split("+")} - {"default"} in (parts, parts | {_PUBLISHED}):
            if others := list(_other_options(folder, options)):
                reason = f"{folder}: other options ({', '.join(others)})"
            else:
                runs.setdefault(variant, []).append(folder)
    if not runs:
        return _Found(reason)
    folders = runs[max(runs, key=lambda name: (_PUBLISHED in name.split("+"), name))]
    comparison = _read(folders[0] / COMPARISON)
    if len(folders) > 1:
        seeds = load_runs([{"label": FINE_TUNED, "folders": folders}])
        try:
            comparison = replace(compare_runs(seeds), dataset=comparison.dataset)
        except ValueError as error:
            return _Found(str(error))
    note = (read_json_or_none(folders[0] / "run.json") or {}).get("rows") or ""
    return _Found("", tuple(folders), comparison, note=note)


def _read(path: Path) -> Comparison:
    return parse(Comparison, read_json(path), str(path))


def _other_options(folder: Path, wanted: CommandOptions) -> Iterator[str]:
    """Yield the options of a run that its recipe does not have, or has and the run does not."""
    given = (read_json_or_none(folder / "run.json") or {}).get("options")
    if given is None:
        yield "not recorded"
        return
    if given["env"] != wanted.env:
        yield f"--env={given['env']}"
    params = given["params"]
    for key in {**wanted.params, **params}:
        beside = key in _WITHOUT_EFFECT or key.partition(".")[0] in _PARTS_WITHOUT_EFFECT
        if (not beside or key == _EXIF) and params.get(key) != wanted.params.get(key):
            yield f"{key}={params.get(key, '(its default)')}"


def _values(comparison: Comparison, model: str) -> Iterator[tuple[str, _Measured]]:
    """Yield each metric with the model's value, or with the reason why it is no counterpart."""
    for row in comparison.rows:
        own = row.benchmark == retrieval.NAME and comparison.dataset == "coco"
        benchmark = "coco" if own else row.benchmark
        remark, value = _remark(row, benchmark, comparison), row.values.get(model)
        if value is not None:
            yield f"{benchmark}/{row.metric}/{row.name}", (None if remark else value, remark)


def _remark(row: Row, benchmark: str, comparison: Comparison) -> str:
    """Why a row's values cannot stand beside published ones, empty if they can."""
    if row.benchmark in comparison.titles:
        return "unofficial files"
    audits = [each for each in comparison.audits if each.benchmark == row.benchmark]
    texts = {f"{benchmark}/{each.subtask}": each.content for each in audits}
    for name, content in read_published()[2].items():
        if (texts.get(name) or content) != content:
            return f"the texts of {name} are not those of the official files"
    if deviations := dict.fromkeys(why for each in audits for why in each.deviations):
        return f"not scored as officially: {', '.join(deviations)}"
    official = read_published()[1].get(f"{benchmark}/{row.name}")
    if official is None or is_partial(row, benchmark):
        scored = f"{row.items:,} items of {row.images:,} images"
        return f"{scored}, officially {'no fixed number' if official is None else f'{official:,}'}"
    return ""
