"""What is missing or unusable of the data of a run, and of what edits or describes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib import metadata
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compo_pipeline.chat.settings import EndpointSettings
from compo_pipeline.configuration.settings import SettingsError, parse
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
from compo_pipeline.datasets.recaption.settings import LocalCaptionerSettings, RecaptionSettings
from compo_pipeline.datasets.settings import DataSettings
from compo_pipeline.project.item_problems import refusal, split_problem
from compo_pipeline.storage.remote import RemoteError
from compo_pipeline.storage.tables import CARVED

if TYPE_CHECKING:
    from compo_pipeline.project.settings import RunSettings

# Formats whose first records can be read without reading whole files.
_STREAMED = ("folder", "table", "pixelprose", "cogvlm_laion", "img2dataset", "cc3m_coca")
_RECORDS = 100


def source_problems(data: DataSettings, trains: Sequence[str]) -> Iterator[str]:
    """Yield errors for each data source's files and splits, and for files that sources share."""
    from compo_pipeline.datasets.readers import rename_source_keys, shared_files

    for name, part in data.parts.items():
        problems = _single_source_problems(part) if part.generated is None else ()
        yield from (rename_source_keys(each, name) if data.sources else each for each in problems)
        if data.sources and part.splits.keys().isdisjoint({*trains, CARVED}):
            splits = ", ".join(part.splits) or "no split"
            yield (
                f"data.sources.{name}.splits: no row of {splits} trains; expected "
                f"{' or '.join(trains)} (views.split) among them"
            )
    if data.sources:
        yield from shared_files(data, trains)


def _single_source_problems(data: DataSettings) -> Iterator[str]:
    """Yield errors for a source's root, caption files, columns and first images."""
    from compo_pipeline.datasets.readers import read_split, reader
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
                islice(read_split(data, split, source), _RECORDS) for split in splits
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


def recaption_problems(parameters: RunSettings, *, alone: bool) -> Iterator[str]:
    """Yield errors for the splits, API key or model folder of recaptioning.

    If `alone`, no other pipeline of the run reads the captions.
    """
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
        yield from refusal(_check_captioner_folder, settings)
    # Stored answers need no key: of those only a request asks for it.
    elif not (Path(parameters.paths.recaptions_state) / "endpoint.sqlite").exists():
        from compo_pipeline.chat.endpoint import api_key

        key = "recaption.endpoint"
        yield from refusal(api_key, parse(EndpointSettings, settings.endpoint, key), key)


def _check_captioner_folder(settings: RecaptionSettings) -> None:
    """Raise an error if the local captioner's folder holds no supported model."""
    from compo_pipeline.datasets.recaption.local import check

    key = "recaption.transformers"
    check(Path(parse(LocalCaptionerSettings, settings.transformers, key).folder))


def counterfactual_problems(parameters: RunSettings) -> Iterator[str]:
    """Yield errors for a caption editor or image generator that does not fit, or has no model."""
    chosen = parameters.counterfactuals
    data = parameters.data
    data_format = "several sources" if data.sources else data.format
    yield from _format_problems(
        "caption_editor", chosen.caption_editor, CAPTION_EDITORS, data_format
    )
    if chosen.image_generator is not None:
        key, name = "image_generator", chosen.image_generator
        yield from _format_problems(key, name, IMAGE_GENERATORS, data_format)
    try:
        if chosen.caption_editor == "rules":
            key = "counterfactuals.rules"
            yield from word_problems(parse(RulesSettings, chosen.rules, key), key)
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
            check_table(*table.table_settings(chosen), table.TABLE_KEY)
        if chosen.image_generator == "diffusion":
            from compo_pipeline.counterfactuals.generators.diffusion import DiffusionGenerator

            key = "counterfactuals.diffusion"
            DiffusionGenerator(parse(DiffusionSettings, chosen.diffusion, key)).check()
    except SettingsError as error:
        yield error.message


def _format_problems(
    key: str, name: str, entries: Mapping[str, EditorEntry | GeneratorEntry], data_format: str
) -> Iterator[str]:
    """Yield an error if a caption editor or image generator is for another data format."""
    wanted = entries[name].format
    if wanted not in (None, data_format):
        others = [one for one, each in entries.items() if each.format in (None, data_format)]
        yield (
            f"counterfactuals.{key}: '{name}' is for data of the format {wanted}, got "
            f"{data_format} (data.format); expected {' or '.join(others)}"
        )


def word_problems(settings: Any, key: str) -> Iterator[str]:
    """Yield errors for missing WordNet, concreteness ratings, or JSON files with caption foils."""
    from compo_pipeline.language import concreteness, unit_files
    from compo_pipeline.language.replacements import replacer

    if source := getattr(settings, "replacements", None):
        yield from refusal(partial(replacer, source, key=f"{key}.replacements"))
    if chosen := getattr(settings, "concreteness", None):
        yield from refusal(concreteness.load, chosen, f"{key}.concreteness")
    if folder := getattr(settings, "unit_files", None):
        yield from refusal(unit_files.files, Path(folder), f"{key}.unit_files")


def language_problems(model: str) -> Iterator[str]:
    """Yield errors for a spaCy pipeline that is not installed, or would run its own code."""
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
