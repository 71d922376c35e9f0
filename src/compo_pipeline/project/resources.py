"""Inputs, data, models and folders that a pipeline needs, checked before it runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compo_pipeline.configuration.settings import PlainError, SettingsError, overlay, parse
from compo_pipeline.datasets.annotations import check as check_table
from compo_pipeline.methods.registry import METHOD_SETTINGS, build, method_type
from compo_pipeline.methods.views import FROM_TABLE, annotated_contents
from compo_pipeline.project import plan
from compo_pipeline.project.data_problems import (
    counterfactual_problems,
    language_problems,
    recaption_problems,
    source_problems,
    word_problems,
)
from compo_pipeline.project.item_problems import (
    GENERATED,
    attention_problems,
    benchmark_problems,
    held_out_problems,
    refusal,
    selection_problems,
    validation_problems,
)
from compo_pipeline.project.settings import (
    PARAMS,
    configured_values,
    edits_captions,
    loader_of,
    read_parameters,
)
from compo_pipeline.storage.tables import splits_of

if TYPE_CHECKING:
    from kedro.io import CatalogProtocol
    from kedro.pipeline import Pipeline

    from compo_pipeline.models.settings import ModelSettings
    from compo_pipeline.project.settings import RunSettings
    from compo_pipeline.tracking.settings import TrackingSettings
    from compo_pipeline.training.settings import TrainingSettings
    from compo_pipeline.versions.settings import RegistrationSettings


def check_resources(
    parameters: RunSettings, pipeline: Pipeline, catalog: CatalogProtocol[Any, Any]
) -> None:
    """Raise an error if data, models or folders of a pipeline are missing; download weights.

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
    """Yield errors for inputs, models and settings that are missing or unusable."""
    read, outputs = read_parameters(pipeline), pipeline.all_outputs()
    if "registration" in read:
        signs = bool({"registered", "rescored", "copied_version"} & outputs)
        yield from _signing_problems(parameters.registration, signs=signs)
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
        yield from source_problems(data, splits_of(parameters.views.split))
    elif "valid_captions" in pipeline.inputs() and not data.root.is_dir():
        how = f"; {GENERATED}" if data.generated is not None and not generated else ""
        yield f"data.root: there is no folder '{data.root}' (seen from {Path.cwd()}){how}"
    yield from held_out_problems(parameters, read, outputs)
    if "recaptions" in outputs:
        yield from recaption_problems(parameters, alone="captions" not in outputs)
    if edits_captions(read, parameters):
        yield from counterfactual_problems(parameters)
    if "training" in read:
        yield from validation_problems(parameters, generated=generated)
    if "checkpoint" in outputs:
        yield from refusal(_check_processes, parameters.training)
    # Training reads `benchmarks` only to exclude their items from validation.
    if {"benchmarks", "evaluation"} <= read:
        yield from benchmark_problems(
            parameters.benchmarks, "benchmarks", data, generated=generated
        )
    if "tuning" in read:
        tuned = parameters.tuning.benchmarks
        yield from benchmark_problems(tuned, "tuning.benchmarks", data, generated=generated)
    if "language.model" in read:
        yield from language_problems(parameters.language.model)
    if f"{METHOD_SETTINGS}.views" in read:
        key = f"{parameters.method}.views"
        kind: Any = method_type(parameters.method).views_type
        yield from word_problems(parse(kind, parameters.method_settings.views, key), key)
    if "annotations" in outputs:
        yield from refusal(_check_annotations, parameters)
    if "model" in read:
        found = list(_model_problems(parameters.model))
        yield from found
        if {METHOD_SETTINGS, "training"} <= read and not found:
            yield from _fit_problems(parameters)
    if "attention" in read:
        yield from attention_problems(parameters.attention, data)
    if "comparison_sets" in read:
        yield from refusal(_check_cells, parameters)
    if "model_lists" in read:
        from compo_pipeline.evaluation.suite import listed_models

        for name, model in listed_models(parameters.models, parameters.model_lists).items():
            key = f"model_lists.{parameters.models}.{name}"
            yield from _model_problems(model, key, tracking=parameters.tracking)
    yield from _folder_problems(outputs, catalog)


def _signing_problems(settings: RegistrationSettings, *, signs: bool) -> Iterator[str]:
    """Yield errors for configured keys that cannot sign or verify versions."""
    from compo_pipeline.versions.signing import key_problems

    yield from key_problems(settings.signing, signs=signs)


def _check_cells(parameters: RunSettings) -> None:
    """Parse the settings of every run of the chosen comparison set, to find errors early."""
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


def _check_processes(settings: TrainingSettings) -> None:
    """Raise an error if batches or groups are not divisible by the number of processes."""
    from compo_pipeline.training.ranks import Ranks

    processes = settings.distributed.nproc_per_node
    if processes != "auto":
        ranks = Ranks(0, processes)
        ranks.refuse_uneven(settings.batch_size, settings.contrast_group)


def _check_annotations(parameters: RunSettings) -> None:
    """Raise an error if the external table of `views.from_table` lacks needed columns."""
    own = parameters.method_settings
    used = parameters.views.from_table
    if contents := annotated_contents(build(parameters.method, own.views, own.objective), used):
        check_table(used, contents, FROM_TABLE)


def _model_problems(
    settings: ModelSettings, key: str = "model", *, tracking: TrackingSettings | None = None
) -> Iterator[str]:
    """Yield errors for a model whose files, or whose registered version, cannot be found.

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


def _fit_problems(parameters: RunSettings) -> Iterator[str]:
    """Yield errors for layers or features that the method needs and the base model lacks."""
    from compo_pipeline.models.sources import find_source
    from compo_pipeline.training.fit import misfits

    own = parameters.method_settings
    method = build(parameters.method, own.views, own.objective)
    yield from misfits(find_source(parameters.model), method, parameters.training)


def _folder_problems(outputs: set[str], catalog: CatalogProtocol[Any, Any]) -> Iterator[str]:
    """Yield errors for output folders that are not writable."""
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


class MissingInput(PlainError, FileNotFoundError):
    """Error: an input of the pipeline does not exist yet."""


def check_inputs(pipeline: Pipeline, catalog: CatalogProtocol[Any, Any]) -> None:
    """Raise an error if a catalog entry that the pipeline reads does not exist.

    Args:
        pipeline: the one that is about to run.
        catalog: Kedro's.

    Raises:
        MissingInput: naming the catalog entries, their paths, and the pipelines that write them.
    """
    from kedro.io import AbstractDataset

    missing = []
    for entry in sorted(name for name in pipeline.inputs() if not name.startswith(PARAMS)):
        dataset: Any = catalog[entry]
        # Kedro reports datasets without a check of their own as missing.
        can_check = type(dataset)._exists is not AbstractDataset._exists
        if not can_check or catalog.exists(entry):
            continue
        described: Mapping[str, Any] = dataset._describe()
        path = described.get("filepath")  # absolute
        place = os.path.relpath(path) if path else str(dict(described))
        writer = writer_of(entry)
        by = f"written by `kedro run --pipeline={writer}`" if writer else "written by no pipeline"
        missing.append(f"  {entry}: {place}, {by}")
    if missing:
        raise MissingInput(
            "missing inputs:\n" + "\n".join(missing) + "\nRun these (`--pipeline=train_eval` runs "
            "all of a training) with the same --env and --params: dataset, method, variant, seed "
            "and models name the folders"
        )


def writer_of(entry: str) -> str | None:
    """Name of the pipeline that writes a catalog entry; None if none does."""
    from kedro.framework.project import pipelines

    # The sums of other pipelines are registered last.
    return next((name for name, each in pipelines.items() if entry in each.all_outputs()), None)
