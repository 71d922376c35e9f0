"""Data, models and folders that a pipeline needs, checked before it runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from importlib import metadata
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compo_pipeline import engines
from compo_pipeline.configuration import SettingsError, parse, value_at
from compo_pipeline.datasets.settings import SCENES, DataSettings
from compo_pipeline.methods.registry import METHOD_SETTINGS
from compo_pipeline.preflight.settings import CHOICES, edits_captions, read_parameters
from compo_pipeline.remote import RemoteError

if TYPE_CHECKING:
    from kedro.io import CatalogProtocol
    from kedro.pipeline import Pipeline

# Formats whose first records can be read without reading whole files.
_STREAMED = ("table", "pixelprose", "cogvlm_laion", "img2dataset", "cc3m_coca")
_RECORDS = 100
_RENDERED = "`kedro run --pipeline=train_eval` with the same --env renders the scenes"


def check_resources(
    parameters: Mapping[str, Any], pipeline: Pipeline, catalog: CatalogProtocol[Any, Any]
) -> None:
    """Check the data, models and folders that a pipeline needs; weights are downloaded here.

    Args:
        parameters: the project's, after `check_settings`.
        pipeline: the one that is about to run.
        catalog: Kedro's.

    Raises:
        SettingsError: something is missing or cannot be used; one line each.
    """
    if problems := list(_problems(parameters, pipeline, catalog)):
        raise SettingsError("\n".join(problems))


def _problems(
    parameters: Mapping[str, Any], pipeline: Pipeline, catalog: CatalogProtocol[Any, Any]
) -> Iterator[str]:
    """What is missing or cannot be used, one line each."""
    read, outputs = read_parameters(pipeline), pipeline.all_outputs()
    if "prepare" in read:
        yield from _refusal(_check_engine, parameters["prepare"])
    if "registration" in read:
        copies = "promotion" in read and parameters["promotion"]["action"] == "copy"
        signs = copies or bool({"registered", "rescored"} & outputs)
        yield from _signing(parameters["registration"], signs=signs)
    # All that it needs is in the registry.
    if "promotion" in read:
        return
    data = parse(DataSettings, parameters["data"], "data")
    # Two nodes render the scenes: the first of all pipelines, and the one that scores a list.
    rendered = data.rendered and bool({"source", "suite"} & outputs)
    if "source" in outputs and not rendered:
        yield from _data(data)
    elif "valid_captions" in pipeline.inputs() and not data.root.is_dir():
        how = f"; {_RENDERED}" if data.rendered and not rendered else ""
        yield f"data.root: there is no folder '{data.root}' (seen from {Path.cwd()}){how}"
    if {"views", "views.split"} & read:
        yield from _split(parameters["views"]["split"], "views.split", data)
    if edits_captions(read, parameters):
        yield from _counterfactuals(parameters, data)
    if "training" in read:
        yield from _validation(parameters, data, rendered=rendered)
    if "checkpoint" in outputs:
        yield from _refusal(_check_processes, parameters["training"])
    # Training reads `benchmarks` only to exclude their items from validation.
    scored = {"benchmarks": {"benchmarks", "evaluation"}, "tuning.benchmarks": {"tuning"}}
    for key, needed in scored.items():
        if needed <= read:
            yield from _benchmarks(value_at(parameters, key), key, data, rendered=rendered)
    if "language.model" in read:
        yield from _language(parameters["language"]["model"])
    if f"{METHOD_SETTINGS}.views" in read:
        views = parameters[METHOD_SETTINGS]["views"]
        yield from _words(views, f"{parameters['method']}.views")
    if "model" in read:
        yield from _model(parameters["model"])
    if "half_truths" in outputs:
        key = "benchmarks.retrieval.split"
        yield from _split(value_at(parameters, key), key, data)
    if "attention" in read:
        yield from _attention(parameters["attention"], data)
    if "comparison_sets" in read:
        from compo_pipeline.pipelines.comparison import find_cells

        named = ("set", "comparison_sets", "dataset", "command")
        yield from _refusal(find_cells, *(parameters[name] for name in named))
    if "model_lists" in read:
        from compo_pipeline.evaluation.suite import listed_models

        chosen = parameters["models"]
        for name, model in listed_models(chosen, parameters["model_lists"]).items():
            key = f"model_lists.{chosen}.{name}"
            yield from _model(asdict(model), key, tracking=parameters["tracking"])
    yield from _folders(outputs, catalog)


def _refusal(check: Callable[..., object], *arguments: Any) -> Iterator[str]:
    """The message of a check that refuses its arguments."""
    try:
        check(*arguments)
    except SettingsError as error:
        yield error.message


def _data(data: DataSettings) -> Iterator[str]:
    """The data's root, caption files and columns, and the first images."""
    from compo_pipeline.datasets.readers import reader
    from compo_pipeline.datasets.readers.record import RawCaption, SourceError
    from compo_pipeline.images.decoding import ACCEPTED, is_there

    chosen = reader(data)
    if not data.root.is_dir():
        yield (
            f"data.root: there is no folder '{data.root}' (seen from {Path.cwd()}); expected the "
            "folder that holds captions and images"
        )
        return
    if not data.sources:
        yield "data.splits: empty; expected at least a split for training"
    for source in dict.fromkeys(data.sources.values()):
        splits = data.sharing(source)
        named = ", ".join(splits)
        try:
            chosen.caption_files(data, source)
            if data.format not in _STREAMED:
                continue
            # Of a file of several splits those of each: of a small one the first may have none.
            records = chain.from_iterable(
                islice(chosen.read(data, split, source), _RECORDS) for split in splits
            )
            images = [record.image for record in records if isinstance(record, RawCaption)]
        except (SourceError, RemoteError) as error:
            yield f"data.splits.{named}: {error}"
            continue
        if images and not any(is_there(data.root, image, ACCEPTED) for image in images):
            what = (
                "paths with / between folders, in the place of \\"
                if all("\\" in image for image in images)
                else "the folder that their paths start from, below data.root"
            )
            yield (
                f"data.images: none of the first {len(images)} images of the split"
                f"{'s' * (len(splits) > 1)} {named} is below {data.root} (such as '{images[0]}'); "
                f"expected {what}"
            )


def _check_engine(values: Mapping[str, Any]) -> None:
    engines.check(parse(engines.PrepareSettings, values, engines.KEY))


def _signing(values: Mapping[str, Any], *, signs: bool) -> Iterator[str]:
    from compo_pipeline.registry.settings import RegistrationSettings
    from compo_pipeline.registry.signing import key_problems

    signing = parse(RegistrationSettings, values, "registration").signing
    yield from key_problems(signing, signs=signs)


def _split(name: str | None, key: str, data: DataSettings) -> Iterator[str]:
    if name is not None and name not in data.sources:
        yield (
            f"{key}: '{name}' is no split of the data; expected one of {', '.join(data.sources)} "
            "(data.splits)"
        )


def _attention(values: Mapping[str, Any], data: DataSettings) -> Iterator[str]:
    """The split or the images that are analysed."""
    from compo_pipeline.analysis.settings import AttentionSettings

    settings = parse(AttentionSettings, values, "attention")
    if settings.images is None:
        yield from _split(settings.split, "attention.split", data)
    elif not Path(settings.images).expanduser().exists():
        yield (
            f"attention.images: there is no file or folder {settings.images} (seen from "
            f"{Path.cwd()})"
        )


def _counterfactuals(parameters: Mapping[str, Any], data: DataSettings) -> Iterator[str]:
    """Whether editor and generator fit the data, and the folders of their models."""
    from compo_pipeline.counterfactuals.settings import (
        DiffusionSettings,
        EndpointSettings,
        TransformersSettings,
    )

    chosen = {key: parameters["counterfactuals"][key] for key in CHOICES}
    for key, name in chosen.items():
        if name == SCENES and data.format != SCENES:
            other = (
                "diffusion or null"
                if key == "image_generator"
                else "rules, endpoint or transformers"
            )
            yield f"counterfactuals.{key}: 'scenes' is for rendered scenes; expected {other}"
    try:
        if chosen["caption_editor"] == "rules":
            key = "counterfactuals.rules"
            yield from _words(value_at(parameters, key), key)
        # Stored answers need no key: of those only a request asks for it.
        state = Path(value_at(parameters, "paths.counterfactuals_state"))
        if chosen["caption_editor"] == "endpoint" and not (state / "endpoint.sqlite").exists():
            from compo_pipeline.counterfactuals.editors.endpoint import headers_of

            key = "counterfactuals.endpoint"
            headers_of(parse(EndpointSettings, value_at(parameters, key), key), key)
        if chosen["caption_editor"] == "transformers":
            from compo_pipeline.counterfactuals.editors.local import check_folder

            key = "counterfactuals.transformers"
            check_folder(
                Path(parse(TransformersSettings, value_at(parameters, key), key).folder), key
            )
        if chosen["image_generator"] == "diffusion":
            from compo_pipeline.counterfactuals.generators.diffusion import DiffusionGenerator

            key = "counterfactuals.diffusion"
            DiffusionGenerator(parse(DiffusionSettings, value_at(parameters, key), key)).check()
    except SettingsError as error:
        yield error.message


def _benchmarks(
    values: Mapping[str, Any], key: str, data: DataSettings, *, rendered: bool
) -> Iterator[str]:
    """Files and images of the enabled benchmarks, and the split for retrieval."""
    from compo_pipeline.evaluation.benchmarks.loading import from_files, with_key
    from compo_pipeline.evaluation.settings import BenchmarksSettings
    from compo_pipeline.images.decoding import is_there

    settings = parse(BenchmarksSettings, values, key)
    yield from _split(settings.retrieval.split, f"{key}.retrieval.split", data)
    if settings.root is not None and data.root in Path(settings.root).parents:
        if rendered:
            return
        if data.rendered and not Path(settings.root).is_dir():
            yield f"{key}.root: there is no folder {settings.root}; {_RENDERED}"
            return
    try:
        subtasks = from_files(settings)
    except ValueError as error:
        message = with_key(str(error), key)
        yield message if message.startswith(key) else f"{key}: {message}"
        return
    except RemoteError as error:
        yield f"{key}: {error}"
        return
    if not subtasks and settings.retrieval.split is None:
        yield f"{key}: nothing is scored; set {key}.root or {key}.retrieval.split"
    for name in dict.fromkeys(task.benchmark for task in subtasks):
        tasks = [task for task in subtasks if task.benchmark == name]
        places = [place for task in tasks for item in task.items for place in task.places(item)]
        if not any(is_there(*place) for place in places):
            root, image, _ = places[0]
            yield (
                f"{key}.images: none of the {len(places)} images of {name} is there (such as "
                f"{root / image})"
            )


def _validation(
    parameters: Mapping[str, Any], data: DataSettings, *, rendered: bool
) -> Iterator[str]:
    """The split and the benchmarks that training is validated on."""
    from compo_pipeline.training.settings import TrainingSettings
    from compo_pipeline.training.validation import KEY, check_split
    from compo_pipeline.tuning.selection import benchmark_files

    settings = parse(TrainingSettings, parameters["training"], "training").validation
    if settings.every is None:
        return
    yield from _split(settings.split, f"{KEY}.split", data)
    reported = value_at(parameters, "benchmarks.retrieval.split")
    yield from _refusal(check_split, settings, parameters["views"]["split"], reported)
    try:
        files = benchmark_files(settings)
    except SettingsError as error:
        yield error.message
        return
    if files is not None:
        yield from _benchmarks(asdict(files), f"{KEY}.benchmarks", data, rendered=rendered)


def _check_processes(values: Mapping[str, Any]) -> None:
    from compo_pipeline.training.ranks import Ranks
    from compo_pipeline.training.settings import TrainingSettings

    settings = parse(TrainingSettings, values, "training")
    nodes, processes = settings.distributed.nnodes, settings.distributed.nproc_per_node
    if processes != "auto":
        ranks = Ranks(0, nodes * processes)
        ranks.refuse_uneven(settings.batch_size, settings.contrast_group)


def _words(values: Mapping[str, Any], key: str) -> Iterator[str]:
    """The sources of the words that rules write: WordNet, ratings, units of a caption."""
    from compo_pipeline.language import concreteness, unit_files
    from compo_pipeline.language.replacements import replacer

    source = values.get("replacements", "lexicon")
    yield from _refusal(lambda: replacer(source, key=f"{key}.replacements"))
    if "concreteness" in values:
        place = f"{key}.concreteness"
        chosen = parse(concreteness.ConcretenessSettings, values["concreteness"], place)
        yield from _refusal(concreteness.load, chosen, place)
    if folder := values.get("unit_files"):
        yield from _refusal(unit_files.files, Path(folder), f"{key}.unit_files")


def _language(model: str) -> Iterator[str]:
    from compo_pipeline.language.parsing import SHIPPED, refuse_foreign_code

    if model == SHIPPED:
        return
    if Path(model).is_dir():
        try:
            refuse_foreign_code(Path(model))
        except (OSError, ValueError) as error:
            yield f"language.model: {' '.join(str(error).split())}"
        return
    try:
        metadata.distribution(model)
    except (metadata.PackageNotFoundError, ValueError):
        yield (
            f"language.model: '{model}' is neither installed nor a folder; expected '{SHIPPED}' "
            "(shipped), an installed spaCy package or the folder of a spaCy pipeline"
        )


def _model(
    values: Mapping[str, Any], key: str = "model", *, tracking: Mapping[str, Any] | None = None
) -> Iterator[str]:
    """The files of a model, or the registered version where the pipeline reads those.

    Args:
        values: of the model's settings.
        key: the YAML key of these settings.
        tracking: settings of the registry; None where registered versions are not read.
    """
    from compo_pipeline.models import sources
    from compo_pipeline.models.settings import REGISTRY_PREFIX, ModelSettings

    settings = parse(ModelSettings, values, "model")
    if settings.tokenizer is not None and not Path(settings.tokenizer).exists():
        yield f"{key}.tokenizer: there is no file or folder '{settings.tokenizer}'"
    check: Callable[[], object] = partial(sources.find_source, settings)
    if tracking is not None and settings.name.startswith(REGISTRY_PREFIX):
        from compo_pipeline.registry.settings import TrackingSettings
        from compo_pipeline.registry.tracking import configure
        from compo_pipeline.registry.versions import version_of

        configure(parse(TrackingSettings, tracking, "tracking"), Path.cwd())
        check = partial(version_of, settings.name, "model.name")
    try:
        check()
    except SettingsError as error:
        # Faults of a folder name no key: checkpoints are read by the same code.
        fault = error.message.removeprefix("model.")
        yield f"{key}.{fault}" if fault != error.message else f"{key}.name: {fault}"


def _folders(outputs: set[str], catalog: CatalogProtocol[Any, Any]) -> Iterator[str]:
    """Folders that are not writable, each with the first output that belongs there."""
    found: dict[Path, tuple[str, Path]] = {}
    for entry in sorted(outputs):
        if entry in catalog and "filepath" in (described := catalog[entry]._describe()):
            place = Path(described["filepath"])
            # An output may be an existing folder.
            there = next(parent for parent in (place, *place.parents) if parent.exists())
            found.setdefault(there if there.is_dir() else there.parent, (entry, place))
    for folder, (entry, place) in found.items():
        if not os.access(folder, os.W_OK | os.X_OK):
            yield (
                f"{folder}: cannot be written to, and {os.path.relpath(place)} (catalog entry "
                f"{entry}) belongs there"
            )
