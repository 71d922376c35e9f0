"""Data, models and folders that a pipeline needs, checked before it runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from importlib import metadata
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compo_pipeline.chat.settings import EndpointSettings
from compo_pipeline.configuration.settings import SettingsError, overlay, parse
from compo_pipeline.counterfactuals import table
from compo_pipeline.counterfactuals.contract import EditorEntry, GeneratorEntry
from compo_pipeline.counterfactuals.registry import CAPTION_EDITORS, IMAGE_GENERATORS
from compo_pipeline.counterfactuals.settings import (
    DiffusionSettings,
    EditorEndpointSettings,
    EditorLocalSettings,
    RulesSettings,
)
from compo_pipeline.datasets.annotations import check as check_table
from compo_pipeline.datasets.recaption.settings import (
    LocalCaptionerSettings,
    RecaptionSettings,
)
from compo_pipeline.datasets.settings import DataSettings
from compo_pipeline.methods.registry import METHOD_SETTINGS, build, method_type
from compo_pipeline.methods.views import FROM_TABLE, annotated_contents
from compo_pipeline.project import plan
from compo_pipeline.project.held_out import (
    held_out_problems,
    selection_problems,
    split_problem,
    unbuilt_problem,
)
from compo_pipeline.project.settings import (
    configured_values,
    edits_captions,
    loader_of,
    read_parameters,
)
from compo_pipeline.run import engines
from compo_pipeline.storage.remote import RemoteError
from compo_pipeline.storage.tables import CARVED, splits_of

if TYPE_CHECKING:
    from kedro.io import CatalogProtocol
    from kedro.pipeline import Pipeline

    from compo_pipeline.benchmarks.settings import BenchmarksSettings
    from compo_pipeline.evaluation.analysis.settings import AttentionSettings
    from compo_pipeline.models.settings import ModelSettings
    from compo_pipeline.project.settings import RunSettings
    from compo_pipeline.tracking.settings import TrackingSettings
    from compo_pipeline.training.settings import TrainingSettings
    from compo_pipeline.versions.settings import RegistrationSettings

# Formats whose first records can be read without reading whole files.
_STREAMED = ("folder", "table", "pixelprose", "cogvlm_laion", "img2dataset", "cc3m_coca")
_RECORDS = 100
_GENERATED = "`kedro run --pipeline=train_eval` with the same --env makes the data"


def check_resources(
    parameters: RunSettings, pipeline: Pipeline, catalog: CatalogProtocol[Any, Any]
) -> None:
    """Check the data, models and folders that a pipeline needs; weights are downloaded here.

    Args:
        parameters: the project's.
        pipeline: the one that is about to run.
        catalog: Kedro's.

    Raises:
        SettingsError: something is missing or cannot be used; one line each.
    """
    if problems := list(dict.fromkeys(_problems(parameters, pipeline, catalog))):
        raise SettingsError("\n".join(problems))
    if {"source", "checkpoint"} <= pipeline.all_outputs():
        plan.check_disk(parameters)


def _problems(
    parameters: RunSettings, pipeline: Pipeline, catalog: CatalogProtocol[Any, Any]
) -> Iterator[str]:
    """Errors for inputs, models and settings that are missing or unusable, one line each."""
    read, outputs = read_parameters(pipeline), pipeline.all_outputs()
    if "prepare" in read:
        yield from _refusal(engines.check, parameters.prepare)
    if "registration" in read:
        signs = bool({"registered", "rescored", "copied_version"} & outputs)
        yield from _signing(parameters.registration, signs=signs)
        # Without an evaluation the stored one says what was scored: `collect_evidence` reads it.
        judged = parameters.registration.alias is not None and "registered" in outputs
        if (judged and "comparison" in outputs) or "rescored" in outputs:
            yield from selection_problems(parameters)
    # All that it needs is in the registry.
    if "promotion" in read:
        return
    data = parameters.data
    # Two nodes make the data: the first of all pipelines, and the one that scores a list.
    generated = data.generated is not None and bool({"source", "suite"} & outputs)
    if "source" in outputs:
        yield from _sources(data, splits_of(parameters.views.split))
    elif "valid_captions" in pipeline.inputs() and not data.root.is_dir():
        how = f"; {_GENERATED}" if data.generated is not None and not generated else ""
        yield f"data.root: there is no folder '{data.root}' (seen from {Path.cwd()}){how}"
    yield from held_out_problems(parameters, read, outputs)
    if "recaptions" in outputs:
        yield from _recaptions(parameters, alone="captions" not in outputs)
    if edits_captions(read, parameters):
        yield from _counterfactuals(parameters)
    if "training" in read:
        yield from _validation(parameters, generated=generated)
    if "checkpoint" in outputs:
        yield from _refusal(_check_processes, parameters.training)
    # Training reads `benchmarks` only to exclude their items from validation.
    if {"benchmarks", "evaluation"} <= read:
        yield from _benchmarks(parameters.benchmarks, "benchmarks", data, generated=generated)
    if "tuning" in read:
        tuned = parameters.tuning.benchmarks
        yield from _benchmarks(tuned, "tuning.benchmarks", data, generated=generated)
    if "language.model" in read:
        yield from _language(parameters.language.model)
    if f"{METHOD_SETTINGS}.views" in read:
        key = f"{parameters.method}.views"
        kind: Any = method_type(parameters.method).views_type
        yield from _words(parse(kind, parameters.method_settings.views, key), key)
    if "annotations" in outputs:
        yield from _refusal(_check_annotations, parameters)
    if "model" in read:
        found = list(_model(parameters.model))
        yield from found
        if {METHOD_SETTINGS, "training"} <= read and not found:
            yield from _fit(parameters)
    if "attention" in read:
        yield from _attention(parameters.attention, data)
    if "comparison_sets" in read:
        yield from _refusal(_check_cells, parameters)
    if "model_lists" in read:
        from compo_pipeline.evaluation.suite import listed_models

        for name, model in listed_models(parameters.models, parameters.model_lists).items():
            key = f"model_lists.{parameters.models}.{name}"
            yield from _model(model, key, tracking=parameters.tracking)
    yield from _folders(outputs, catalog)


def _refusal(check: Callable[..., object], *arguments: Any) -> Iterator[str]:
    """The message of a check that refuses its arguments."""
    try:
        check(*arguments)
    except SettingsError as error:
        yield error.message


def _sources(data: DataSettings, trains: Sequence[str]) -> Iterator[str]:
    """The data of each source that is not generated, and what several sources share."""
    from compo_pipeline.datasets.readers import in_source, shared_files

    for name, part in data.parts.items():
        problems = _data(part) if part.generated is None else ()
        yield from (in_source(each, name) if data.sources else each for each in problems)
        if data.sources and part.splits.keys().isdisjoint({*trains, CARVED}):
            splits = ", ".join(part.splits) or "no split"
            yield (
                f"data.sources.{name}.splits: no row of {splits} trains; expected "
                f"{' or '.join(trains)} (views.split) among them"
            )
    if data.sources:
        yield from shared_files(data, trains)


def _data(data: DataSettings) -> Iterator[str]:
    """The data's root, caption files and columns, and the first images."""
    from compo_pipeline.datasets.readers import reader
    from compo_pipeline.datasets.readers.joined import caption_tables
    from compo_pipeline.datasets.readers.record import RawCaption, SourceError
    from compo_pipeline.images.decoding import ACCEPTED, is_there

    try:
        chosen = reader(data)
    except SettingsError as error:
        yield error.message
        return
    if not data.root.is_dir():
        yield (
            f"data.root: there is no folder '{data.root}' (seen from {Path.cwd()}); expected the "
            "folder that holds captions and images"
        )
        return
    if not data.splits:
        yield "data.splits: empty; expected at least a split for training"
    try:
        caption_tables(data)
    except (SourceError, RemoteError) as error:
        yield str(error)
    for source in dict.fromkeys(data.splits.values()):
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


def _signing(settings: RegistrationSettings, *, signs: bool) -> Iterator[str]:
    """Errors for keys that cannot sign or verify."""
    from compo_pipeline.versions.signing import key_problems

    yield from key_problems(settings.signing, signs=signs)


def _check_cells(parameters: RunSettings) -> None:
    """Read the settings of every cell of the chosen set."""
    from compo_pipeline.comparison.cells import CONF, find_cells

    chosen = parameters.set
    command = asdict(parameters.command)
    found = find_cells(chosen, parameters.comparison_sets, parameters.dataset, command)
    for label, cell in found.cells.items():
        try:
            configured_values(loader_of(CONF, cell["env"], overlay(cell["params"])))
        except SettingsError as error:
            key = f"comparison_sets.{chosen}.cells.{label}"
            lines = error.message.replace("--params: ", "params: ").splitlines()
            raise SettingsError("\n".join(f"{key}: {line}" for line in lines)) from None


def _attention(settings: AttentionSettings, data: DataSettings) -> Iterator[str]:
    """The split or the images that are analysed."""
    if settings.images is None:
        yield from split_problem(settings.split, "attention.split", data)
    elif not Path(settings.images).expanduser().exists():
        yield (
            f"attention.images: there is no file or folder {settings.images} (seen from "
            f"{Path.cwd()})"
        )


def _recaptions(parameters: RunSettings, *, alone: bool) -> Iterator[str]:
    """The splits, the API key or the model's folder; alone: no pipeline reads the captions."""
    settings = parameters.recaption
    if settings.captioner is None:
        return
    for split in settings.splits or ():
        yield from split_problem(split, "recaption.splits", parameters.data)
    if settings.dry_run is not None and not alone:
        yield (
            f"recaption.dry_run: {settings.dry_run} images are captioned to look at, and no table "
            "is written: run it by `kedro run --pipeline=recaption` alone, or leave it out"
        )
    if settings.captioner == "transformers":
        yield from _refusal(_captioner_folder, settings)
    # Stored answers need no key: of those only a request asks for it.
    elif not (Path(parameters.paths.recaptions_state) / "endpoint.sqlite").exists():
        from compo_pipeline.chat.endpoint import api_key

        key = "recaption.endpoint"
        yield from _refusal(api_key, parse(EndpointSettings, settings.endpoint, key), key)


def _captioner_folder(settings: RecaptionSettings) -> None:
    """Check the folder of the local captioning model."""
    from compo_pipeline.datasets.recaption.local import check

    key = "recaption.transformers"
    check(Path(parse(LocalCaptionerSettings, settings.transformers, key).folder))


def _counterfactuals(parameters: RunSettings) -> Iterator[str]:
    """Whether editor and generator fit the data, and the folders of their models."""
    chosen = parameters.counterfactuals
    data = parameters.data
    data_format = "several sources" if data.sources else data.format
    yield from _of_format("caption_editor", chosen.caption_editor, CAPTION_EDITORS, data_format)
    if chosen.image_generator is not None:
        key, name = "image_generator", chosen.image_generator
        yield from _of_format(key, name, IMAGE_GENERATORS, data_format)
    try:
        if chosen.caption_editor == "rules":
            key = "counterfactuals.rules"
            yield from _words(parse(RulesSettings, chosen.rules, key), key)
        # Stored answers need no key: of those only a request asks for it.
        state = Path(parameters.paths.counterfactuals_state)
        if chosen.caption_editor == "endpoint" and not (state / "endpoint.sqlite").exists():
            from compo_pipeline.chat.endpoint import api_key

            key = "counterfactuals.endpoint"
            api_key(parse(EditorEndpointSettings, chosen.endpoint, key), key)
        if chosen.caption_editor == "transformers":
            from compo_pipeline.chat.local import check_folder
            from compo_pipeline.counterfactuals.editors.local import MODEL

            key = "counterfactuals.transformers"
            folder = Path(parse(EditorLocalSettings, chosen.transformers, key).folder)
            check_folder(folder, key, MODEL)
        if chosen.caption_editor == table.NAME:
            check_table(*table.chosen(chosen), table.TABLE_KEY)
        if chosen.image_generator == "diffusion":
            from compo_pipeline.counterfactuals.generators.diffusion import DiffusionGenerator

            key = "counterfactuals.diffusion"
            DiffusionGenerator(parse(DiffusionSettings, chosen.diffusion, key)).check()
    except SettingsError as error:
        yield error.message


def _of_format(
    key: str, name: str, entries: Mapping[str, EditorEntry | GeneratorEntry], data_format: str
) -> Iterator[str]:
    """Whether a caption editor or image generator is for data of this format."""
    wanted = entries[name].format
    if wanted not in (None, data_format):
        others = [one for one, each in entries.items() if each.format in (None, data_format)]
        yield (
            f"counterfactuals.{key}: '{name}' is for data of the format {wanted}, got "
            f"{data_format} (data.format); expected {' or '.join(others)}"
        )


def _benchmarks(
    settings: BenchmarksSettings, key: str, data: DataSettings, *, generated: bool
) -> Iterator[str]:
    """Files and images of the enabled benchmarks, and the split for retrieval."""
    from compo_pipeline.benchmarks.loading import from_files, with_key
    from compo_pipeline.images.decoding import is_there

    yield from split_problem(settings.retrieval.split, f"{key}.retrieval.split", data)
    made = data.generator
    if settings.root is not None and made and made.root in Path(settings.root).parents:
        if generated:
            return
        if data.generated is not None and not Path(settings.root).is_dir():
            yield f"{key}.root: there is no folder {settings.root}; {_GENERATED}"
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
    if not subtasks and settings.retrieval.split is None and settings.foils.split is None:
        yield (
            f"{key}: nothing is scored; set {key}.root, {key}.retrieval.split or {key}.foils.split"
        )
    for name in dict.fromkeys(task.benchmark for task in subtasks):
        tasks = [task for task in subtasks if task.benchmark == name]
        places = [place for task in tasks for item in task.items for place in task.places(item)]
        if not any(is_there(*place) for place in places):
            root, image, _ = places[0]
            yield (
                f"{key}.images: none of the {len(places)} images of {name} is there (such as "
                f"{root / image})"
            )


def _validation(parameters: RunSettings, *, generated: bool) -> Iterator[str]:
    """The split and the benchmarks that training is validated on."""
    from compo_pipeline.benchmarks import foils
    from compo_pipeline.training.validation import KEY, check_split
    from compo_pipeline.tuning.selection import benchmark_files, check_figure

    settings, data = parameters.training.validation, parameters.data
    if settings.every is None:
        return
    yield from split_problem(settings.split, f"{KEY}.split", data)
    yield from _refusal(check_split, settings, parameters.views.split, parameters.benchmarks)
    if (settings.figure or "").split("/")[0] == foils.NAME:
        yield from unbuilt_problem(settings.split, f"{KEY}.figure", parameters)
    try:
        files = benchmark_files(settings)
    except SettingsError as error:
        yield error.message
        return
    found = []
    if files is not None:
        found = list(_benchmarks(files, f"{KEY}.benchmarks", data, generated=generated))
    # Items that cannot be read have no figures.
    yield from found or _refusal(check_figure, settings)


def _check_processes(settings: TrainingSettings) -> None:
    """Refuse numbers of processes by which batches or groups cannot be divided."""
    from compo_pipeline.training.ranks import Ranks

    nodes, processes = settings.distributed.nnodes, settings.distributed.nproc_per_node
    if processes != "auto":
        ranks = Ranks(0, nodes * processes)
        ranks.refuse_uneven(settings.batch_size, settings.contrast_group)


def _check_annotations(parameters: RunSettings) -> None:
    """Check the table that views have texts from."""
    own = parameters.method_settings
    used = parameters.views.from_table
    if contents := annotated_contents(build(parameters.method, own.views, own.objective), used):
        check_table(used, contents, FROM_TABLE)


def _words(settings: Any, key: str) -> Iterator[str]:
    """The sources of the words that rules write: WordNet, ratings, units of a caption."""
    from compo_pipeline.language import concreteness, unit_files
    from compo_pipeline.language.replacements import replacer

    if source := getattr(settings, "replacements", None):
        yield from _refusal(partial(replacer, source, key=f"{key}.replacements"))
    if chosen := getattr(settings, "concreteness", None):
        yield from _refusal(concreteness.load, chosen, f"{key}.concreteness")
    if folder := getattr(settings, "unit_files", None):
        yield from _refusal(unit_files.files, Path(folder), f"{key}.unit_files")


def _language(model: str) -> Iterator[str]:
    """Errors for a spaCy pipeline that is not installed, or that would run code of its own."""
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
    settings: ModelSettings, key: str = "model", *, tracking: TrackingSettings | None = None
) -> Iterator[str]:
    """The files of a model, or the registered version where the pipeline reads those.

    Args:
        settings: of the model.
        key: the YAML key of these settings.
        tracking: settings of the registry; None where registered versions are not read.
    """
    from compo_pipeline.models import sources
    from compo_pipeline.models.settings import REGISTRY_PREFIX

    check: Callable[[], object] = partial(sources.find_source, settings)
    if tracking is not None and settings.name.startswith(REGISTRY_PREFIX):
        from compo_pipeline.tracking.runs import configure
        from compo_pipeline.versions.versions import version_of

        configure(tracking, Path.cwd())
        check = partial(version_of, settings.name, "model.name")
    try:
        check()
    except SettingsError as error:
        # Faults of a folder name no key: checkpoints are read by the same code.
        fault = error.message.removeprefix("model.")
        yield f"{key}.{fault}" if fault != error.message else f"{key}.name: {fault}"


def _fit(parameters: RunSettings) -> Iterator[str]:
    """Errors for layers or features that method and recipe need and the base does not have."""
    from compo_pipeline.models.sources import find_source
    from compo_pipeline.training.fit import misfits

    own = parameters.method_settings
    method = build(parameters.method, own.views, own.objective)
    yield from misfits(find_source(parameters.model), method, parameters.training)


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
