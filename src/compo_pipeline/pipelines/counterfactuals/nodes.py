"""Nodes of the pipeline `counterfactuals`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from compo_pipeline.configuration import parse
from compo_pipeline.counterfactuals.contract import CaptionEditor, ImageGenerator
from compo_pipeline.counterfactuals.editors.endpoint import EndpointEditor
from compo_pipeline.counterfactuals.editors.local import TransformersEditor
from compo_pipeline.counterfactuals.editors.rules import RuleEditor
from compo_pipeline.counterfactuals.generation import Folders, Jobs, Parser, generate
from compo_pipeline.counterfactuals.generators.diffusion import DiffusionGenerator
from compo_pipeline.counterfactuals.image_store import publish
from compo_pipeline.counterfactuals.settings import (
    KEY,
    CounterfactualSettings,
    DiffusionSettings,
    EndpointSettings,
    RulesSettings,
    TransformersSettings,
)
from compo_pipeline.counterfactuals.tables import refuse_too_many, summary
from compo_pipeline.engines import PrepareSettings
from compo_pipeline.language.parsing import loaded, name_and_version, parse_by
from compo_pipeline.methods.registry import METHODS, find
from compo_pipeline.presentation.counterfactuals_page import write
from compo_pipeline.records import Caption, Counterfactual, Fact, Parse, Rejected
from compo_pipeline.scenes.counterfactuals import (
    SceneCounterfactuals,
    SceneEditSettings,
    read_scenes,
)
from compo_pipeline.scenes.dataset import SceneSettings
from compo_pipeline.scenes.world import World
from compo_pipeline.storage import FolderWriter
from compo_pipeline.tables.rows import Table, training_rows

SCENES = "scenes"
OpenEngines = Callable[[Sequence[Caption]], tuple[CaptionEditor, Parser, ImageGenerator | None]]
"""Opens caption editor, parser and image generator for the rows whose captions are edited."""

log = logging.getLogger(__name__)


def open_engines(
    settings: CounterfactualSettings,
    captions: Sequence[Caption],
    *,
    language_model: str,
    root: Path,
    world: World,
    state: Path,
) -> tuple[CaptionEditor, Parser, ImageGenerator | None]:
    """Caption editor, parser of its captions, and image generator; None where no images are asked.

    Args:
        settings: name editor and generator and hold the settings of each.
        captions: the rows whose sentences are edited.
        language_model: of the parser.
        root: folder of the real images.
        world: of rendered scenes.
        state: folder where editors store the answers of language models.

    Raises:
        SettingsError: settings that cannot be used, found before a caption is edited.
    """
    if settings.caption_editor == SCENES:
        scenes = _scenes(settings, captions, root, world)
        generator = scenes if settings.image_generator == SCENES else _generator(settings)
        return scenes, Parser("", _unparsed), generator
    return _editor(settings, state), _parser(language_model), _generator(settings)


def _editor(settings: CounterfactualSettings, state: Path) -> CaptionEditor:
    name, seed = settings.caption_editor, settings.seed
    key, values, answers = f"{KEY}.{name}", getattr(settings, name), state / f"{name}.sqlite"
    if name == "rules":
        return RuleEditor(parse(RulesSettings, values, key), key=key, seed=seed)
    if name == "endpoint":
        endpoint = parse(EndpointSettings, values, key)
        return EndpointEditor(endpoint, key=key, seed=seed, cache=answers)

    local = parse(TransformersSettings, values, key)
    return TransformersEditor(local, key=key, seed=seed, cache=answers)


def _generator(settings: CounterfactualSettings) -> ImageGenerator | None:
    if settings.image_generator is None:
        return None

    own = parse(DiffusionSettings, settings.diffusion, f"{KEY}.diffusion")
    generator = DiffusionGenerator(own, "cuda" if torch.cuda.is_available() else "cpu")
    generator.check()
    return generator


def _parser(language_model: str) -> Parser:
    return Parser(name_and_version(loaded(language_model)), partial(parse_by, language_model))


def _unparsed(items: Iterable[tuple[str, int, str]]) -> Iterator[Parse]:
    """Empty parses, for the editor of scenes, which reads none."""
    for sample_id, sentence, text in items:
        yield Parse(sample_id, sentence, text, (), (), (), (), ())


def _scenes(
    settings: CounterfactualSettings, captions: Sequence[Caption], root: Path, world: World
) -> SceneCounterfactuals:
    return SceneCounterfactuals(
        read_scenes(root),
        captions,
        parse(SceneEditSettings, settings.scenes, f"{KEY}.{SCENES}"),
        world,
    )


def choose_jobs(
    valid_captions: Sequence[Caption],
    facts: Sequence[Fact],
    split: str,
    method: str,
    counterfactuals: CounterfactualSettings,
) -> Jobs:
    """The edits to make: of the rows that train, where the method trains on counterfactuals."""
    if find(method).counterfactuals:
        rows = training_rows(valid_captions, split)
    else:
        names = ", ".join(name for name, entry in METHODS.items() if entry.counterfactuals)
        log.info("%s trains on no counterfactuals: none are made (only for %s).", method, names)
        rows = Table.of([], Caption)
    measured = Table.of(facts, Fact)
    hashes = measured.column("image_hash").take(measured.places("image", rows.column("image")))
    return Jobs(rows, hashes, counterfactuals.sentences)


def choose_engines(
    counterfactuals: CounterfactualSettings,
    language_model: str,
    root: Path,
    scenes: SceneSettings,
    state: str,
) -> OpenEngines:
    """A function that opens what edits captions, parses them and generates images."""
    return partial(
        open_engines,
        counterfactuals,
        language_model=language_model,
        root=Path(root),
        world=scenes.world.world(),
        state=Path(state),
    )


def make_counterfactuals(
    jobs: Jobs,
    engines: OpenEngines,
    counterfactuals: CounterfactualSettings,
    root: Path,
    state: str,
    prepare: PrepareSettings,
) -> tuple[Sequence[Counterfactual], Sequence[Rejected], FolderWriter]:
    """Edited captions, failures, and the images.

    Failures do not stop this node, so all tables are saved.
    """
    if not jobs:
        return [], [], partial(publish, ())

    folders = Folders(Path(root), Path(state))
    edits, quarantine, images = generate(
        jobs, *engines(jobs.captions), counterfactuals, folders, prepare
    )
    return edits, quarantine, partial(publish, images)


def preview_counterfactuals(
    counterfactuals: Sequence[Counterfactual],
    images: Path,
    valid_captions: Sequence[Caption],
    dataset: str,
    root: Path,
) -> FolderWriter:
    """An HTML page of captions, their edits and the images of both."""
    page = partial(write, counterfactuals, valid_captions, Path(root), images)
    return lambda folder: page(folder / "index.html", dataset)


def check_counterfactuals(
    counterfactuals: Sequence[Counterfactual], settings: CounterfactualSettings, preview: Path
) -> dict[str, Any]:
    """Number of edits; raises where too many failed, after the preview is written."""
    tolerated = settings.tolerated_share
    refuse_too_many(counterfactuals, tolerated, preview)
    return summary(counterfactuals)
