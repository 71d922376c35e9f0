"""Check the inputs of a run before its first node, and report all missing or invalid ones."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from compo_pipeline.core.provenance import CommandOptions
from compo_pipeline.core.remote import RemoteError
from compo_pipeline.core.settings import PlainError, SettingsError, with_values
from compo_pipeline.core.tables import CARVED, HELD_OUT, splits_of
from compo_pipeline.data.annotations import check as check_table
from compo_pipeline.data.generators import GENERATORS
from compo_pipeline.generation.counterfactuals import table
from compo_pipeline.methods.registry import METHOD_SETTINGS, build, find
from compo_pipeline.methods.views import FROM_TABLE, annotated_contents
from compo_pipeline.project.settings import PARAMS, loader_of, read_settings

if TYPE_CHECKING:
    from kedro.io import CatalogProtocol
    from kedro.pipeline import Pipeline

    from compo_pipeline.benchmarks.settings import BenchmarksSettings
    from compo_pipeline.data.settings import DataSettings
    from compo_pipeline.models.settings import ModelSettings
    from compo_pipeline.project.settings import Parameters

_GENERATED = "`kedro run --pipeline=train_eval` with the same --env makes the data"


class Run(NamedTuple):
    """A run that is about to start: its settings and options, and its pipeline."""

    settings: Parameters
    command: CommandOptions
    pipeline: Pipeline

    def reads(self, *names: str) -> bool:
        """Whether the pipeline reads all parameters of these names."""
        return {f"{PARAMS}{name}" for name in names} <= self.pipeline.inputs()

    def writes(self, *entries: str) -> bool:
        """Whether the pipeline makes one of these entries."""
        return not self.pipeline.all_outputs().isdisjoint(entries)

    @property
    def generates(self) -> bool:
        """Whether the run makes the data before a node needs them."""
        return self.settings.data.generated is not None and self.writes("source", "suite")


def check_resources(parameters: Parameters, command: CommandOptions, pipeline: Pipeline) -> None:
    """Raise an error if inputs, models or settings of a run are missing or unusable.

    Args:
        parameters: the project's.
        command: options of the run.
        pipeline: pipeline that is about to run.

    Raises:
        SettingsError: one line for each problem.
    """
    run = Run(parameters, command, pipeline)
    checks = (_registration, _data, _foils, _all_items, _validation, _texts, _models, _cells)
    if found := dict.fromkeys(chain.from_iterable(_errors_of(check, run) for check in checks)):
        raise SettingsError("\n".join(found))


def _errors_of(check: Callable[..., Any], *given: Any, **named: Any) -> Iterator[str]:
    """Yield the lines that a check yields or raises as an error."""
    try:
        if isinstance(found := check(*given, **named), Iterator):
            yield from found
    except PlainError as error:
        yield from error.message.splitlines()


class MissingInput(PlainError, FileNotFoundError):
    """Error: an input of the pipeline does not exist yet."""


def check_inputs(pipeline: Pipeline, catalog: CatalogProtocol[Any, Any]) -> None:
    """Raise an error if a catalog entry that the pipeline reads does not exist.

    Args:
        pipeline: pipeline that is about to run.
        catalog: Kedro's data catalog.

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
    """Name of the pipeline that writes a catalog entry, or None if none does."""
    from kedro.framework.project import pipelines

    # Those of the whole chain are registered first, in its order.
    return next((name for name in pipelines if entry in pipelines[name].all_outputs()), None)


def _registration(run: Run) -> Iterator[str]:
    """Yield errors for keys, and for items that both select weights or settings and are judged."""
    settings = run.settings
    if run.reads("registration"):
        from compo_pipeline.registry.lineage import check_keys

        signs = run.writes("registered", "rescored")
        yield from _errors_of(check_keys, settings.registration.signing, signs=signs)
    # Without an evaluation the stored one says what was scored: `export_checkpoint` reads it.
    judged = settings.registration.alias is not None and run.writes("registered")
    if run.writes("rescored") or (judged and run.writes("comparison")):
        from compo_pipeline.benchmarks import loading
        from compo_pipeline.tuning.selection import describe_selecting, selecting_benchmarks

        validation, tuned = settings.training.validation, settings.tuning.benchmarks
        scored = loading.sources(settings.benchmarks)
        yield from describe_selecting(scored, selecting_benchmarks(scored, validation, tuned))


def _data(run: Run) -> Iterator[str]:
    """Yield errors for the sources of the data and their splits."""
    data, trains = run.settings.data, splits_of(run.settings.views.split)
    if run.reads("views") or run.reads("views.split"):
        for split in trains:
            if split != CARVED:  # there are such rows where foils.carve asks for them
                yield from _no_split(run, split, "views.split")
    if not run.writes("source"):
        if "valid_captions" in run.pipeline.inputs() and not data.root.is_dir():
            how = f"; {_GENERATED}" if data.generated is not None and not run.generates else ""
            yield f"data.root: there is no folder '{data.root}' (seen from {Path.cwd()}){how}"
        return
    for name, part in data.parts.items():
        if part.generated is None:
            yield from _errors_of(_locate, part, name if data.sources else "")
        if data.sources and part.splits.keys().isdisjoint({*trains, CARVED}):
            splits = ", ".join(part.splits) or "no split"
            yield (
                f"data.sources.{name}.splits: no row of {splits} trains; expected "
                f"{' or '.join(trains)} (views.split) among them"
            )
    for name in (HELD_OUT, CARVED):
        if run.settings.foils.carve and name in data.split_names:
            yield f"data.splits.{name}: foils.carve makes a split of this name; choose another one"


def _locate(part: DataSettings, source: str) -> None:
    """Raise an error if the files of a source are not there."""
    from compo_pipeline.data.readers import locate_source, naming_keys_of

    with naming_keys_of(source):
        locate_source(part)


def _unknown(name: str | None, known: Collection[str], key: str, kind: str) -> Iterator[str]:
    """Yield an error for a name that is not known."""
    if name is not None and name not in known:
        yield f"{key}: '{name}' is {kind}; expected one of {', '.join(known) or 'none'}"


def _no_split(run: Run, name: str | None, key: str) -> Iterator[str]:
    return _unknown(name, run.settings.data.split_names, key, "no split of the data (data.splits)")


def _no_foils(run: Run, name: str | None, key: str) -> Iterator[str]:
    return _unknown(name, run.settings.foils.splits, key, "no set of foils (foils.splits)")


def _foils(run: Run) -> Iterator[str]:
    """Yield errors for splits of `foils.splits` that are absent, or are training splits."""
    foils, data = run.settings.foils, run.settings.data
    for name, split in foils.splits.items() if run.reads("foils") else ():
        key = f"foils.splits.{name}"
        if split != HELD_OUT or HELD_OUT in data.split_names:
            yield from _no_split(run, split, key)
        elif not foils.carve:
            yield (
                f"{key}: no row is of the split '{HELD_OUT}'; set foils.carve to the number of its "
                f"images, or name one of {', '.join(data.split_names)}"
            )
        if split in splits_of(run.settings.views.split):
            yield f"{key}: '{split}' is the split that trains (views.split)"
    built = run.settings.benchmarks.foils.split
    if run.reads("benchmarks", "evaluation"):
        yield from _no_foils(run, built, "benchmarks.foils.split")
    if run.writes("diagnoses") and built is None:
        yield (
            "benchmarks.foils.split: a diagnosis needs foils, got null; `kedro run "
            "--pipelines=foils,diagnosis --params foils.splits.test=test,"
            "benchmarks.foils.split=test` builds them first"
        )


def _all_items(run: Run) -> Iterator[str]:
    """Yield errors for reported items, and for items that select settings and train or are
    official.
    """
    from compo_pipeline.tuning.selection import TUNED, refuse_official

    settings, tuned = run.settings, run.settings.tuning.benchmarks
    if run.reads("tuning"):
        yield from _no_foils(run, tuned.foils.split, f"{TUNED}.foils.split")
        if (split := tuned.retrieval.split) in splits_of(settings.views.split):
            yield (
                f"{TUNED}.retrieval.split: the split '{split}' trains (views.split); expected one "
                "that only selects, or null"
            )
        yield from _items(run, tuned, TUNED)
    chooses = settings.training.wise_ft.ratio == "auto"
    if run.reads("tuning") or (chooses and run.reads("tuning.benchmarks")):
        yield from _errors_of(refuse_official, tuned)
    # Training reads `benchmarks` only to exclude their items from validation.
    if run.reads("benchmarks", "evaluation"):
        yield from _items(run, settings.benchmarks, "benchmarks")


def _items(run: Run, settings: BenchmarksSettings, key: str) -> Iterator[str]:
    """Yield errors for missing files, images or splits of the enabled benchmarks."""
    from compo_pipeline.benchmarks.loading import from_files, with_yaml_key
    from compo_pipeline.data.images.decoding import is_there

    yield from _no_split(run, settings.retrieval.split, f"{key}.retrieval.split")
    made = run.settings.data.generator
    if settings.root is not None and made and made.root in Path(settings.root).parents:
        if run.generates:
            return
        if run.settings.data.generated is not None and not Path(settings.root).is_dir():
            yield f"{key}.root: there is no folder {settings.root}; {_GENERATED}"
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


def _validation(run: Run) -> Iterator[str]:
    """Yield errors for the split or the benchmarks on which training is validated."""
    settings = run.settings.training.validation
    if not run.reads("training") or settings.every is None:
        return
    from compo_pipeline.benchmarks import foils
    from compo_pipeline.training.validation import KEY, check_split
    from compo_pipeline.tuning.selection import TUNED, benchmark_files, check_validation_metric

    yield from _no_split(run, settings.split, f"{KEY}.split")
    if (settings.figure or "").split("/")[0] == foils.NAME:
        yield from _no_foils(run, settings.split, f"{KEY}.figure")
    selecting = run.settings.tuning.benchmarks
    trains, reported = run.settings.views.split, run.settings.benchmarks
    yield from _errors_of(check_split, settings, trains, reported)
    if files := benchmark_files(settings, selecting):
        yield from _items(run, files, TUNED)
    yield from _errors_of(check_validation_metric, settings, selecting)


def _texts(run: Run) -> Iterator[str]:
    """Yield errors for what writes, edits or parses captions."""
    settings = run.settings
    if settings.recaption.captioner is not None and run.writes("recaptions"):
        for split in settings.recaption.splits or ():
            yield from _no_split(run, split, "recaption.splits")
        if settings.recaption.dry_run is not None and run.writes("captions"):
            yield (
                f"recaption.dry_run: {settings.recaption.dry_run} images are captioned to look at: "
                "run it by `kedro run --pipeline=ingest --to-nodes=data.recaption_images`, or "
                "leave it out"
            )
        if settings.recaption.captioner == "endpoint":
            own = getattr(settings.recaption, settings.recaption.captioner)
            state = settings.paths.recaptions_state
            yield from _errors_of(_check_key, own, "recaption.endpoint", state)
    if run.reads("language.model"):
        from compo_pipeline.language.parsing import SHIPPED, load_once

        if settings.language.model != SHIPPED:
            yield from _errors_of(load_once, settings.language.model)
    if run.reads("method", "counterfactuals") and find(settings.method).counterfactuals:
        yield from _errors_of(_open_counterfactuals, run)
    if run.reads(f"{METHOD_SETTINGS}.views") or run.writes("annotations"):
        method = build(settings.method, **settings.method_settings)
        yield from _errors_of(_check_words, method.view_settings, f"{settings.method}.views")
        used = settings.views.from_table
        if run.writes("annotations") and (contents := annotated_contents(method, used)):
            yield from _errors_of(check_table, used, contents, FROM_TABLE)


def _open_counterfactuals(run: Run) -> None:
    """Raise an error for a caption editor or image generator without its data, key or model."""
    chosen, data = run.settings.counterfactuals, run.settings.data
    for key, name in (
        ("caption_editor", chosen.caption_editor),
        ("image_generator", chosen.image_generator),
    ):
        if name in GENERATORS and (data.generator is None or data.generator.format != name):
            raise SettingsError(
                f"counterfactuals.{key}: '{name}' reads data of the format {name} alone, got "
                f"{'several sources' if data.sources else data.format} (data.format); choose "
                "another one"
            )
    own = getattr(chosen, chosen.caption_editor)
    if chosen.caption_editor == "rules":
        _check_words(own, "counterfactuals.rules")
    if chosen.caption_editor == "endpoint":
        _check_key(own, "counterfactuals.endpoint", run.settings.paths.counterfactuals_state)
    if chosen.caption_editor == table.NAME:
        check_table(*table.table_settings(chosen), table.TABLE_KEY)
    if chosen.image_generator == "diffusion":
        from compo_pipeline.generation.counterfactuals.generators.diffusion import (
            DiffusionGenerator,
        )

        DiffusionGenerator(getattr(chosen, chosen.image_generator))


def _check_key(endpoint: Any, key: str, state: str) -> None:
    """Raise an error if an endpoint has no API key. Stored answers need none."""
    from compo_pipeline.generation.chat.endpoint import api_key

    if not Path(state, "endpoint.sqlite").exists():
        api_key(endpoint, key)


def _check_words(settings: Any, key: str) -> None:
    """Raise an error if WordNet is missing."""
    from compo_pipeline.language.replacements import replacer

    if source := getattr(settings, "replacements", None):
        replacer(source, key=f"{key}.replacements")


def _models(run: Run) -> Iterator[str]:
    """Yield errors for models that do not exist, or lack what the method or the recipe needs."""
    settings = run.settings
    if run.writes("checkpoint") and settings.training.distributed.nproc_per_node != "auto":
        from compo_pipeline.training.ranks import Ranks

        ranks, training = Ranks(0, settings.training.distributed.nproc_per_node), settings.training
        yield from _errors_of(ranks.refuse_uneven, training.batch_size, training.contrast_group)
    if run.reads("model"):
        found = list(_model(settings.model, "model"))
        yield from found
        if run.reads(METHOD_SETTINGS, "training") and not found:
            from compo_pipeline.models.loading import skeleton
            from compo_pipeline.models.sources import find_source
            from compo_pipeline.training.optimisation import misfits

            plan = find_source(settings.model)
            method = build(settings.method, **settings.method_settings)
            module = skeleton(plan.name, plan.model_cfg)
            yield from misfits(module, plan.name, method, settings.training)
            yield from _errors_of(method.check_base, plan.name)
    if run.reads("model_lists"):
        from compo_pipeline.evaluation.scorers import CHAT_FOLDER, check_scorer
        from compo_pipeline.evaluation.suite import listed_models
        from compo_pipeline.registry.runs import configure

        for name, model in listed_models(settings.models, settings.model_lists).items():
            configure(settings.tracking, Path.cwd())
            key = f"model_lists.{settings.models}.{name}"
            if model.endpoint is not None:
                state = str(Path(settings.paths.embeddings, CHAT_FOLDER))
                yield from _errors_of(_check_key, model.endpoint, f"{key}.endpoint", state)
            elif model.scorer:
                yield from (f"{key}.name: {line}" for line in _errors_of(check_scorer, model))
            else:
                yield from _model(model, key, registered=True)


def _model(settings: ModelSettings, key: str, *, registered: bool = False) -> Iterator[str]:
    """Yield errors for a model whose files, or whose registered version, cannot be found."""
    from compo_pipeline.models.settings import REGISTRY_PREFIX
    from compo_pipeline.models.sources import find_source
    from compo_pipeline.registry.versions import version_of

    try:
        if registered and settings.name.startswith(REGISTRY_PREFIX):
            version_of(settings.name, "model.name")
        else:
            find_source(settings)
    except SettingsError as error:
        # Faults of a folder name no key: checkpoints are read by the same code.
        fault = error.message.removeprefix("model.")
        yield f"{key}.{fault}" if fault != error.message else f"{key}.name: {fault}"


def _cells(run: Run) -> Iterator[str]:
    """Yield errors for settings, texts and models of every run of the chosen comparison set."""
    settings = run.settings
    if not run.reads("comparison_sets"):
        return
    from kedro.framework.project import pipelines

    from compo_pipeline.tuning.cells import PIPELINES, find_cells

    sets, name = settings.comparison_sets, settings.set
    found = find_cells(name, sets, settings.dataset, run.command)
    trained = sum((pipelines[each] for each in PIPELINES[1:]), pipelines[PIPELINES[0]])
    cells: dict[str, list[str]] = {}
    for label, cell in found.cells.items():
        command = CommandOptions(cell["env"], with_values({}, cell["params"]))
        for line in _errors_of(_cell, command, trained):
            cells.setdefault(line.replace("--params: ", "params: "), []).append(label)
    for line, (label, *others) in cells.items():
        also = f" (and so of the cells {'; '.join(others)})" if others else ""
        yield f"comparison_sets.{name}.cells.{label}: {line}{also}"


def _cell(command: CommandOptions, pipeline: Pipeline) -> Iterator[str]:
    """Yield errors for one run of a comparison set."""
    from compo_pipeline.tuning.cells import CONF

    settings = read_settings(loader_of(CONF, command.env, command.params))
    for check in (_texts, _models):
        yield from _errors_of(check, Run(settings, command, pipeline))
