"""What is missing or unusable of the items that a run is scored on, checked before it.

Rows and items train, select or are reported: no one does two of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compo_pipeline.configuration.settings import SettingsError
from compo_pipeline.datasets.settings import DataSettings
from compo_pipeline.storage.remote import RemoteError
from compo_pipeline.storage.tables import CARVED, HELD_OUT, splits_of

if TYPE_CHECKING:
    from compo_pipeline.benchmarks.settings import BenchmarksSettings
    from compo_pipeline.evaluation.analysis.settings import AttentionSettings
    from compo_pipeline.project.settings import RunSettings

GENERATED = "`kedro run --pipeline=train_eval` with the same --env makes the data"


def refusal(check: Callable[..., object], *arguments: Any) -> Iterator[str]:
    """Call a check, and yield the message of the settings error that it raises, if any."""
    try:
        check(*arguments)
    except SettingsError as error:
        yield error.message


def held_out_problems(parameters: RunSettings, read: Set[str], outputs: Set[str]) -> Iterator[str]:
    """Yield errors for absent splits, and for training splits that also select or are reported.

    Args:
        parameters: the project's.
        read: names of the parameters that a pipeline reads.
        outputs: what it writes.
    """
    if "source" in outputs:
        yield from _carved_split_problems(parameters)
    if {"views", "views.split"} & read:
        for split in splits_of(parameters.views.split):
            if split != CARVED:  # there are such rows where foils.carve asks for them
                yield from split_problem(split, "views.split", parameters.data)
    if "foils" in read:
        yield from _foil_split_problems(parameters)
    if {"benchmarks", "evaluation"} <= read:
        yield from unbuilt_problem(
            parameters.benchmarks.foils.split, "benchmarks.foils.split", parameters
        )
    if "diagnoses" in outputs and parameters.benchmarks.foils.split is None:
        yield (
            "benchmarks.foils.split: a diagnosis needs foils, got null; `kedro run "
            "--pipelines=foils,diagnosis --params foils.splits.test=test,"
            "benchmarks.foils.split=test` builds them first"
        )
    if "tuning" in read:
        yield from _selection_split_problems(parameters)
    if {"tuning", "tuning.benchmarks"} & read:
        yield from _official_problems(parameters.tuning.benchmarks)


def selection_problems(parameters: RunSettings) -> Iterator[str]:
    """Yield errors for scored benchmark items that also select checkpoints or settings."""
    from compo_pipeline.benchmarks import loading
    from compo_pipeline.tuning.selection import describe_selecting, selecting_benchmarks

    validation, tuned = parameters.training.validation, parameters.tuning.benchmarks
    try:
        scored = loading.sources(parameters.benchmarks)
        yield from describe_selecting(scored, selecting_benchmarks(scored, validation, tuned))
    except SettingsError:
        return  # a name that is no benchmark's, which the check of the benchmarks tells


def split_problem(name: str | None, key: str, data: DataSettings) -> Iterator[str]:
    """Yield an error if the data have no split of the given name."""
    if name is not None and name not in data.split_names:
        yield (
            f"{key}: '{name}' is no split of the data; expected one of "
            f"{', '.join(data.split_names)} (data.splits)"
        )


def _foil_split_problems(parameters: RunSettings) -> Iterator[str]:
    """Yield errors for splits of `foils.splits` that are absent, or are training splits."""
    foils, data = parameters.foils, parameters.data
    for name, split in foils.splits.items():
        if split == HELD_OUT and HELD_OUT not in data.split_names:
            if not foils.carve:
                yield (
                    f"foils.splits.{name}: no row is of the split '{HELD_OUT}'; set foils.carve to "
                    f"the number of its images, or name one of {', '.join(data.split_names)}"
                )
        else:
            yield from split_problem(split, f"foils.splits.{name}", data)
        if split in splits_of(parameters.views.split):
            yield f"foils.splits.{name}: '{split}' is the split that trains (views.split)"


def unbuilt_problem(name: str | None, key: str, parameters: RunSettings) -> Iterator[str]:
    """Yield an error if `foils.splits` has no set of foils of the given name."""
    known = parameters.foils.splits
    if name is not None and name not in known:
        yield (
            f"{key}: no foils '{name}' are built; expected a name of foils.splits "
            f"({', '.join(known) or 'there are none'}), or null"
        )


def _selection_split_problems(parameters: RunSettings) -> Iterator[str]:
    """Yield errors for splits on which settings are selected and that train or are reported."""
    from compo_pipeline.tuning.selection import TUNED

    tuned, reported = parameters.tuning.benchmarks, parameters.benchmarks
    built = tuned.foils.split
    yield from unbuilt_problem(built, f"{TUNED}.foils.split", parameters)
    if built is not None and built == reported.foils.split:
        yield f"{TUNED}.foils.split: '{built}' is reported too (benchmarks.foils.split)"
    taken: dict[str | None, str] = {
        **dict.fromkeys(splits_of(parameters.views.split), "trains (views.split)"),
        reported.retrieval.split: "is reported (benchmarks.retrieval.split)",
    }
    split = tuned.retrieval.split
    if split is not None and split in taken:
        yield (
            f"{TUNED}.retrieval.split: the split '{split}' {taken[split]}; expected one that only "
            "selects, or null"
        )


def _official_problems(tuned: BenchmarksSettings) -> Iterator[str]:
    """Yield errors for official benchmark files that would select settings or a WiSE-FT ratio."""
    from compo_pipeline.tuning.selection import INSTEAD, TUNED, refuse_official

    yield from refusal(refuse_official, tuned, TUNED, INSTEAD)


def _carved_split_problems(parameters: RunSettings) -> Iterator[str]:
    """Yield errors for data splits whose names `foils.carve` uses for its own splits."""
    for name in (HELD_OUT, CARVED):
        if parameters.foils.carve and name in parameters.data.split_names:
            yield f"data.splits.{name}: foils.carve makes a split of this name; choose another one"


def benchmark_problems(
    settings: BenchmarksSettings, key: str, data: DataSettings, *, generated: bool
) -> Iterator[str]:
    """Yield errors for missing files, images or splits of the enabled benchmarks."""
    from compo_pipeline.benchmarks.loading import from_files, with_yaml_key
    from compo_pipeline.images.decoding import is_there

    yield from split_problem(settings.retrieval.split, f"{key}.retrieval.split", data)
    made = data.generator
    if settings.root is not None and made and made.root in Path(settings.root).parents:
        if generated:
            return
        if data.generated is not None and not Path(settings.root).is_dir():
            yield f"{key}.root: there is no folder {settings.root}; {GENERATED}"
            return
    try:
        subtasks = from_files(settings)
    except ValueError as error:
        message = with_yaml_key(str(error), key)
        yield message if message.startswith(key) else f"{key}: {message}"
        return
    except RemoteError as error:
        yield f"{key}: {error}"
        return
    if not subtasks and settings.retrieval.split is None and settings.foils.split is None:
        yield (
            f"{key}: nothing is scored; set {key}.root, {key}.retrieval.split or {key}.foils.split"
        )
    for name in dict.fromkeys(task.benchmark for task in subtasks):
        tasks = [task for task in subtasks if task.benchmark == name]
        places = [
            place for task in tasks for item in task.items for place in task.image_locations(item)
        ]
        if not any(is_there(*place) for place in places):
            root, image, _ = places[0]
            yield (
                f"{key}.images: none of the {len(places)} images of {name} is there (such as "
                f"{root / image})"
            )


def validation_problems(parameters: RunSettings, *, generated: bool) -> Iterator[str]:
    """Yield errors for the split or the benchmarks on which training is validated."""
    from compo_pipeline.benchmarks import foils
    from compo_pipeline.training.validation import KEY, check_split
    from compo_pipeline.tuning.selection import benchmark_files, check_validation_metric

    settings, data = parameters.training.validation, parameters.data
    if settings.every is None:
        return
    yield from split_problem(settings.split, f"{KEY}.split", data)
    yield from refusal(check_split, settings, parameters.views.split, parameters.benchmarks)
    if (settings.figure or "").split("/")[0] == foils.NAME:
        yield from unbuilt_problem(settings.split, f"{KEY}.figure", parameters)
    try:
        files = benchmark_files(settings)
    except SettingsError as error:
        yield error.message
        return
    found = []
    if files is not None:
        found = list(benchmark_problems(files, f"{KEY}.benchmarks", data, generated=generated))
    # Items that cannot be read have no figures.
    yield from found or refusal(check_validation_metric, settings)


def attention_problems(settings: AttentionSettings, data: DataSettings) -> Iterator[str]:
    """Yield errors for a missing split or missing images of the attention analysis."""
    if settings.images is None:
        yield from split_problem(settings.split, "attention.split", data)
    elif not Path(settings.images).expanduser().exists():
        yield (
            f"attention.images: there is no file or folder {settings.images} (seen from "
            f"{Path.cwd()})"
        )
