"""What a run needs from outside, looked at before its first node: data, models, folders.

Every problem is a line that names its YAML key; all are told at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compo_pipeline.configuration import SettingsError, parse
from compo_pipeline.datasets.settings import SCENES, DataSettings

if TYPE_CHECKING:
    from kedro.io import CatalogProtocol
    from kedro.pipeline import Pipeline

_PARAMS = "params:"
# Readers whose first records are there without reading whole files.
_STREAMED = ("table", "pixelprose", "cogvlm_laion", "img2dataset", "cc3m_coca")
_RECORDS = 100


def check(
    parameters: Mapping[str, Any], pipeline: Pipeline, catalog: CatalogProtocol[Any, Any]
) -> None:
    """Look at everything outside that a pipeline is going to need.

    Weights that are to be downloaded are downloaded here.

    Args:
        parameters: the project's; each part of them is known to parse.
        pipeline: what is about to run.
        catalog: Kedro's.

    Raises:
        SettingsError: something is not there or cannot be used; a line for each.
    """
    read = {name.removeprefix(_PARAMS) for name in pipeline.inputs() if name.startswith(_PARAMS)}
    # Rolling back and copying versions need no data, and promoting seldom a base.
    acts = "promotion" in read
    if acts and parameters["promotion"]["action"] != "promote":
        return
    data = parse(DataSettings, parameters["data"], "data")
    made = pipeline.all_outputs()
    rendered = data.format == SCENES and "source" in made
    problems: list[str] = []
    if "source" in made and not rendered:
        problems += _data(data)
    elif "valid_captions" in pipeline.inputs() and not data.root.is_dir():
        problems.append(f"data.root: there is no folder '{data.root}' (seen from {Path.cwd()})")
    if {"views", "views.split"} & read:
        problems += _split(parameters["views"]["split"], "views.split", data)
    if "method" in read and "counterfactuals" in read:
        problems += _counterfactuals(parameters, data)
    if "training" in read:
        problems += _validation(parameters["training"], data, rendered=rendered)
    # Training reads `benchmarks` only to keep their items out of validation.
    scored = {"benchmarks": {"benchmarks", "evaluation"}, "tuning.benchmarks": {"tuning"}}
    for key, needed in scored.items():
        if needed <= read:
            problems += _benchmarks(_at(parameters, key), key, data, rendered=rendered)
    if "language.model" in read:
        problems += _language(parameters["language"]["model"])
    if "model" in read and not acts:
        problems += _model(parameters["model"])
    problems += _folders(made, catalog)
    if problems:
        raise SettingsError("\n".join(problems))


def _data(data: DataSettings) -> Iterator[str]:
    """Root, caption files, columns, and whether images are where they are said to be."""
    from compo_pipeline.datasets.readers import reader
    from compo_pipeline.datasets.readers.record import RawCaption, SourceError

    chosen = reader(data)
    if not data.root.is_dir():
        yield (
            f"data.root: there is no folder '{data.root}' (seen from {Path.cwd()}); expected the "
            "folder that holds captions and images"
        )
        return
    if not data.sources:
        yield "data.splits: empty; expected at least a split for training"
    for split, source in data.sources.items():
        try:
            chosen.caption_files(data, source)
            if data.format not in _STREAMED:
                continue
            records = islice(chosen.read(data, split, source), _RECORDS)
            images = [record.image for record in records if isinstance(record, RawCaption)]
        except SourceError as error:
            yield f"data.splits.{split}: {error}"
            continue
        if images and not any((data.root / image).exists() for image in images):
            yield (
                f"data.images: none of the first {len(images)} images of the split {split} is "
                f"below {data.root} (such as '{images[0]}'); expected the folder that their paths "
                "start from, below data.root"
            )


def _split(name: str | None, key: str, data: DataSettings) -> Iterator[str]:
    if name is not None and name not in data.sources:
        yield (
            f"{key}: '{name}' is no split of the data; expected one of {', '.join(data.sources)} "
            "(data.splits)"
        )


def _counterfactuals(parameters: Mapping[str, Any], data: DataSettings) -> Iterator[str]:
    from compo_pipeline.methods.registry import find

    if not find(parameters["method"]).counterfactuals or data.format == SCENES:
        return
    for key in ("caption_editor", "image_generator"):
        if parameters["counterfactuals"][key] == SCENES:
            other = (
                "diffusion or null"
                if key == "image_generator"
                else "rules, endpoint or transformers"
            )
            yield f"counterfactuals.{key}: 'scenes' is for rendered scenes; expected {other}"


def _benchmarks(
    values: Mapping[str, Any], key: str, data: DataSettings, *, rendered: bool
) -> Iterator[str]:
    """The files of the benchmarks that are on, their images, and the split for retrieval."""
    from compo_pipeline.evaluation.benchmarks import from_files
    from compo_pipeline.evaluation.settings import BenchmarksSettings

    settings = parse(BenchmarksSettings, values, key)
    yield from _split(settings.retrieval.split, f"{key}.retrieval.split", data)
    if settings.root is None:
        if settings.retrieval.split is None:
            yield f"{key}: nothing is scored; set {key}.root or {key}.retrieval.split"
        return
    if rendered and data.root in Path(settings.root).parents:
        return
    try:
        subtasks = from_files(settings)
    except ValueError as error:
        yield f"{key}.root: {error}"
        return
    places = [task.path(item) for task in subtasks for item in task.items]
    if places and not any(place.is_file() for place in places):
        yield (
            f"{key}.images: none of the {len(places)} images that the files below "
            f"{settings.root} name is there (such as {places[0]})"
        )


def _validation(values: Mapping[str, Any], data: DataSettings, *, rendered: bool) -> Iterator[str]:
    """The split that training is validated on, and the files of its figure."""
    from compo_pipeline.training.settings import TrainingSettings
    from compo_pipeline.training.validation import KEY, benchmark_files

    settings = parse(TrainingSettings, values, "training").validation
    if settings.every is None:
        return
    yield from _split(settings.split, f"{KEY}.split", data)
    if (files := benchmark_files(settings)) is not None:
        yield from _benchmarks(asdict(files), f"{KEY}.benchmarks", data, rendered=rendered)


def _language(model: str) -> Iterator[str]:
    from compo_pipeline.language.loading import SHIPPED

    if model == SHIPPED or Path(model).is_dir():
        return
    try:
        metadata.distribution(model)
    except (metadata.PackageNotFoundError, ValueError):
        yield (
            f"language.model: '{model}' is neither installed nor a folder; expected '{SHIPPED}' "
            "(shipped), an installed spaCy package or the folder of a spaCy pipeline"
        )


def _model(values: Mapping[str, Any]) -> Iterator[str]:
    from compo_pipeline.models import blueprint
    from compo_pipeline.models.settings import ModelSettings

    try:
        blueprint.draw(parse(ModelSettings, values, "model"))
    except SettingsError as error:
        # A folder's own faults are told of checkpoints too, which no key names.
        yield error.message if error.message.startswith("model.") else f"model.name: {error}"


def _folders(made: set[str], catalog: CatalogProtocol[Any, Any]) -> Iterator[str]:
    """Folders in which outputs cannot be written, each with the first of them."""
    found: dict[Path, tuple[str, Path]] = {}
    for entry in sorted(made):
        if entry in catalog and "filepath" in (told := catalog[entry]._describe()):
            place = Path(told["filepath"])
            # An entry that is a folder itself is replaced or written to.
            there = next(parent for parent in (place, *place.parents) if parent.exists())
            found.setdefault(there if there.is_dir() else there.parent, (entry, place))
    for folder, (entry, place) in found.items():
        if not os.access(folder, os.W_OK | os.X_OK):
            yield (
                f"{folder}: cannot be written to, and {os.path.relpath(place)} (catalog entry "
                f"{entry}) belongs there"
            )


def _at(parameters: Mapping[str, Any], key: str) -> Any:
    value: Any = parameters
    for part in key.split("."):
        value = value[part]
    return value
