"""Validation data that selects weights and settings, apart from training and reported items."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from compo_pipeline.benchmarks import foils as foils_of_captions
from compo_pipeline.benchmarks import loading, retrieval
from compo_pipeline.benchmarks.items import Item, Subtask
from compo_pipeline.benchmarks.settings import (
    BENCHMARKS,
    BenchmarkSet,
    BenchmarksSettings,
    FoilBenchmarkSettings,
    RetrievalSettings,
)
from compo_pipeline.core.hashing import hash_of
from compo_pipeline.core.records import Caption, Foil
from compo_pipeline.core.settings import SettingsError, nearest, parse
from compo_pipeline.core.tables import Splits, split_rows
from compo_pipeline.evaluation import scoring
from compo_pipeline.evaluation.contamination import items_hash, without_reported
from compo_pipeline.evaluation.embed import Embedder
from compo_pipeline.evaluation.metrics import METRIC_LABELS, metric_values
from compo_pipeline.evaluation.scoring import score_model
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.models.weights import read_record
from compo_pipeline.training.inputs import HeldOut
from compo_pipeline.training.settings import ValidationSettings
from compo_pipeline.training.validation import (
    KEY,
    check_split,
    held_out_rows,
    refuse_unknown_metric,
)

FOILS_FIGURE = f"{foils_of_captions.NAME}/accuracy/{foils_of_captions.AVERAGE}"
TUNED = "tuning.benchmarks"
# Benchmarks of the dataset's own captions, and the key of their split or set below `benchmarks`.
_OWN = {retrieval.NAME: "retrieval.split", foils_of_captions.NAME: "foils.split"}


@dataclass(frozen=True)
class ItemMetrics:
    """Callable from a model to all its metrics on some benchmark items, in per cent.

    Models with one image tower share its embeddings.
    """

    subtasks: Sequence[Subtask]
    settings: EvaluationSettings = field(default_factory=EvaluationSettings)

    def __call__(self, model: LoadedModel) -> dict[str, float]:
        """Metrics of a model by `benchmark/metric/name`."""
        embedded = self._embedder(model, model.name)
        return metric_values(score_model(self.subtasks, embedded, model.name).rows)

    @cached_property
    def _embedder(self) -> Embedder:
        """Embedder of the items, made at its first use."""
        return Embedder(self.subtasks, self.settings)


def selecting_benchmarks(
    sources: Mapping[str, str], validation: ValidationSettings, tuned: BenchmarksSettings | None
) -> dict[str, str]:
    """Scored benchmarks whose items select weights or settings, with the YAML key that selects.

    Args:
        sources: sources of the scored items, by benchmark (`Subtask.source`).
        validation: settings of validation during training.
        tuned: items that score the trials of a study.

    Raises:
        SettingsError: a name of `tuned` is no benchmark's.
    """
    keys = {}
    for name, source in (loading.sources(tuned) if tuned else {}).items():
        own = _OWN.get(name)
        keys[name, _resolve_source(name, source)] = f"{TUNED}.{own}" if own else TUNED
    if validation.every is not None:
        keys |= {(name, validation.split): f"{KEY}.split" for name in _OWN}
        if tuned and tuned.root is not None:
            files = {name: _resolve_source(name, f"{tuned.root}/{name}") for name in sources}
            keys |= dict.fromkeys(files.items(), f"{TUNED}.root")
    found = {
        name: keys.get((name, _resolve_source(name, source))) for name, source in sources.items()
    }
    return {name: key for name, key in found.items() if key is not None}


def describe_selecting(sources: Mapping[str, str], selecting: Mapping[str, str]) -> Iterator[str]:
    """Yield an error message for each scored benchmark whose items select weights or settings."""
    for name, key in selecting.items():
        own = _OWN.get(name)
        where = f"benchmarks.{own or f'sets.{name}'}: '{sources[name]}'"
        yield (
            f"{where} is {'that' if own else 'a folder'} of {key}, whose items select; a version "
            "with an alias is judged by others: score these, or set registration.alias=null"
        )


def recorded_validation(checkpoint: Path) -> ValidationSettings:
    """Validation settings by which a checkpoint's weights were selected, from its record.

    Validation is off where none selected them. The record does not name the folder of benchmark
    files.
    """
    trained = read_record(checkpoint).get("training", {}).get("fingerprint", {})
    return parse(ValidationSettings, trained.get("training", {}).get("validation", {}), KEY)


def _resolve_source(benchmark: str, source: str) -> str:
    """Source of a benchmark's items for comparison: a split's name, or a folder's absolute path."""
    return source if benchmark in _OWN else str(Path(source).resolve())


def held_out(
    settings: ValidationSettings,
    captions: Sequence[Caption],
    root: Path,
    trains: Splits,
    reported: BenchmarksSettings,
    selecting: BenchmarksSettings,
    foils: Sequence[Foil] = (),
) -> HeldOut:
    """Held-out rows and metrics for validation during training, empty if validation is off.

    Args:
        settings: settings of validation.
        captions: the dataset's, of all splits.
        root: folder of their images.
        trains: the split that trains.
        reported: benchmarks of the final evaluation; no item of them takes part.
        selecting: `tuning.benchmarks`, whose root has the files of the figure's benchmark.
        foils: foils of the captions of all splits.

    Raises:
        SettingsError: the split trains, is reported or has no two images, or the figure's items
            are missing, official test items or among the reported ones.
    """
    if settings.every is None:
        return HeldOut()
    check_split(settings, trains, reported)
    rows = held_out_rows(settings, captions)
    if settings.figure is None:
        return HeldOut(rows)
    if settings.figure.split("/")[0] == foils_of_captions.NAME:
        wanted = _foil_subtasks(settings, foils, root)
    else:
        images = {row.image_id for row in rows}
        wanted = _validation_subtasks(settings, settings.figure, captions, images, root, selecting)
    scored = loading.gather(reported, captions, root, foils)
    metrics = ItemMetrics(_unreported(wanted, scored, EvaluationSettings().workers))
    names = dict.fromkeys(task.benchmark for task in metrics.subtasks)
    averages = (f"{BENCHMARKS[name].averages}" for name in names)
    measured = hash_of(items_hash(metrics.subtasks), *averages, scoring.SCORING)
    return HeldOut(rows, metrics, measured)


def _unreported(
    items: Sequence[Subtask], reported: Sequence[Subtask], workers: int
) -> list[Subtask]:
    """The benchmark items that select weights or settings, without reported items.

    Foils may have images that retrieval over the data's own split ranks: sets of foils that share
    a split have other images and texts than one another, and are no items of retrieval.
    """
    own = [task for task in items if task.benchmark == foils_of_captions.NAME]
    rest = [task for task in items if task.benchmark != foils_of_captions.NAME]
    unranked = [task for task in reported if task.benchmark != retrieval.NAME]
    return [
        *without_reported(own, unranked, workers, TUNED),
        *without_reported(rest, reported, workers, TUNED),
    ]


def benchmark_files(
    settings: ValidationSettings, selecting: BenchmarksSettings
) -> BenchmarksSettings | None:
    """Settings of the benchmark files for the validation metric, or None if it needs no files.

    Raises:
        SettingsError: there is no such benchmark, its folder is not named, or its files are the
            official ones.
    """
    benchmark = (settings.figure or retrieval.NAME).split("/")[0]
    if benchmark not in BENCHMARKS:
        raise SettingsError(
            f"{KEY}.figure: expected a benchmark of {', '.join(BENCHMARKS)}, or null for the loss, "
            f"got '{settings.figure}'{nearest(benchmark, BENCHMARKS)}"
        )
    if BENCHMARKS[benchmark].load is None:
        return None
    if selecting.root is None:
        raise SettingsError(
            f"{TUNED}.root: expected the folder that holds {benchmark}/, since {KEY}.figure is "
            f"'{settings.figure}', got null"
        )
    files = replace(
        selecting,
        sets={benchmark: selecting.sets.get(benchmark) or BenchmarkSet()},
        suite=None,
        retrieval=RetrievalSettings(None),
        foils=FoilBenchmarkSettings(),
    )
    refuse_official(files)
    return files


def refuse_official(settings: BenchmarksSettings) -> None:
    """Refuse official benchmark files as items that select weights or settings.

    Args:
        settings: settings of the items that select weights or settings.

    Raises:
        SettingsError: files are not named as other than the official ones.
    """
    if names := loading.official_benchmarks(settings):
        raise SettingsError(
            f"{TUNED}: the files of {', '.join(names)} below {settings.root} are official test "
            f"items, which select nothing; expected foils ({TUNED}.foils.split, or {KEY}.figure="
            f"{FOILS_FIGURE}), retrieval ({TUNED}.retrieval.split) of held-out rows, or items of "
            f"your own, which a {loading.TITLES} beside their folders names "
            "(docs/how-to/tuning.md)"
        )


def check_validation_metric(settings: ValidationSettings, selecting: BenchmarksSettings) -> None:
    """Check before a run that the validation items will give the configured metric.

    Of files that are not there yet its metric alone is checked.

    Raises:
        SettingsError: they will not.
    """
    if settings.figure is None:
        return
    files = benchmark_files(settings, selecting)
    if files is None:
        one = (Item("", "", ("",)),)
        subtasks = [
            Subtask(retrieval.NAME, text, ("retrieval",), Path(), one) for text in retrieval.TEXTS
        ]
    elif all(place.exists for place in loading.enabled_folders(files)):
        subtasks = loading.from_files(files)
    else:
        metric = settings.figure.split("/")[1]
        if metric not in METRIC_LABELS:
            raise SettingsError(
                f"{KEY}.figure: '{metric}' of '{settings.figure}' is no metric"
                f"{nearest(metric, METRIC_LABELS)} (there are: {', '.join(METRIC_LABELS)})"
            )
        return
    refuse_unknown_metric(settings.figure, scoring.figures_of(subtasks))


def _validation_subtasks(
    settings: ValidationSettings,
    figure: str,
    captions: Sequence[Caption],
    images: set[str],
    root: Path,
    selecting: BenchmarksSettings,
) -> list[Subtask]:
    """Subtasks of the validation items, on which the validation metric is computed."""
    files = benchmark_files(settings, selecting)
    if files is not None:
        try:
            return loading.from_files(files)
        except SettingsError as error:
            raise SettingsError(f"{KEY}, for the figure '{figure}': {error.message}") from None
    name = figure.rsplit("/", 1)[1]
    text = next((text for text in retrieval.TEXTS if text == name), None)
    if text is None:
        raise SettingsError(
            f"{KEY}.figure: '{figure}' ends with no text protocol of retrieval "
            f"(there are: {', '.join(retrieval.TEXTS)})"
        )
    chosen = [row for row in split_rows(captions, settings.split) if row.image_id in images]
    return retrieval.load(chosen, root, RetrievalSettings(settings.split, text))


def _foil_subtasks(
    settings: ValidationSettings, foils: Sequence[Foil], root: Path
) -> list[Subtask]:
    """The used foils of the validation split as subtasks, one for each kind."""
    found = foils_of_captions.load(foils, settings.split, root)
    if not found:
        raise SettingsError(
            f"{KEY}.figure: '{settings.figure}' needs foils of the split '{settings.split}', of "
            "which no kind is used (foils_report says why); expected a figure of retrieval, or "
            "null for the loss"
        )
    return found


def study_items(
    validation: BenchmarksSettings,
    reported: BenchmarksSettings,
    captions: Sequence[Caption],
    root: Path,
    workers: int,
    foils: Sequence[Foil] = (),
) -> list[Subtask]:
    """Benchmark items that score a study's trials, without reported items.

    Raises:
        SettingsError: they are missing, official test items, or among the reported ones.
    """
    refuse_official(validation)
    try:
        items = loading.gather(validation, captions, root, foils)
    except SettingsError as error:
        found = loading.with_yaml_key(error.message, TUNED)
        raise SettingsError(f"{TUNED}, the validation items of a study: {found}") from None
    return _unreported(items, loading.gather(reported, captions, root, foils), workers)
