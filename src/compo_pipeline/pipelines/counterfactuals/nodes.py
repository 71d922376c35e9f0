"""Nodes of the pipeline `counterfactuals`."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from compo_pipeline.core.records import Caption, Counterfactual, Fact, Parse, Rejected
from compo_pipeline.core.table_files import PrepareSettings
from compo_pipeline.core.tables import Splits, Table, training_rows
from compo_pipeline.data.annotations import NO_ANNOTATIONS, Annotations, read
from compo_pipeline.generation.counterfactuals import table
from compo_pipeline.generation.counterfactuals.contract import (
    CaptionEditor,
    ImageGenerator,
    Opening,
)
from compo_pipeline.generation.counterfactuals.generation import (
    ROLES,
    Jobs,
    Parser,
    generate,
    publish,
    refuse_too_many,
    summary,
)
from compo_pipeline.generation.counterfactuals.settings import (
    CAPTION_EDITORS,
    CounterfactualSettings,
    open_editor,
    open_generator,
)
from compo_pipeline.language.parsing import load_once, name_and_version, parse_by
from compo_pipeline.methods.registry import find
from compo_pipeline.pages.previews import counterfactuals_page

log = logging.getLogger(__name__)


def open_engines(
    settings: CounterfactualSettings, language_model: str, opening: Opening
) -> tuple[CaptionEditor, Parser, ImageGenerator | None]:
    """Create the caption editor, the parser for it, and the image generator (or None).

    Args:
        settings: name editor and generator and hold the settings of each.
        language_model: language model of the parser.
        opening: inputs with which editor and generator are opened.

    Raises:
        SettingsError: settings that cannot be used, found before a caption is edited.
    """
    editor, parser = open_editor(settings, opening), Parser("", _unparsed)
    if CAPTION_EDITORS[settings.caption_editor].parses:
        language = name_and_version(load_once(language_model))
        parser = Parser(language, partial(parse_by, language_model))
    return editor, parser, open_generator(settings, opening, editor)


def _unparsed(items: Iterable[tuple[str, int, str]]) -> Iterator[Parse]:
    """Empty parses of captions, for a caption editor that reads no parses."""
    for sample_id, sentence, text in items:
        yield Parse(sample_id, sentence, text, (), (), (), (), ())


def make_counterfactuals(
    valid_captions: Sequence[Caption],
    facts: Sequence[Fact],
    split: Splits,
    method: str,
    counterfactuals: CounterfactualSettings,
    language_model: str,
    root: Path,
    generator_settings: Any,
    state: str,
    prepare: PrepareSettings,
) -> tuple[Sequence[Counterfactual], Sequence[Rejected], Path | dict[str, bytes]]:
    """Edit the training captions if the method trains on counterfactuals, and generate images.

    Failures do not stop this node, so all tables are saved.

    Returns:
        Tables of edited captions and of failures, and a folder of the images.
    """
    if not find(method).counterfactuals:
        log.info("%s trains on no counterfactuals: none are made.", method)
        return [], [], {}
    rows, measured = training_rows(valid_captions, split), Table.of(facts, Fact)
    roles, others = ROLES, NO_ANNOTATIONS
    if counterfactuals.caption_editor == table.NAME:
        own, contents = table.table_settings(counterfactuals)
        found = read(own, contents, rows, table.TABLE_KEY, counterfactuals.sentences)
        roles, others = own.roles, Annotations.from_rows(found, own, contents)
    hashes = measured.column("image_hash").take(measured.places("image", rows.column("image")))
    jobs = Jobs(rows, hashes, counterfactuals.sentences, roles)
    if not jobs:
        return [], [], {}
    opening = Opening(counterfactuals.seed, rows, root, Path(state), generator_settings, others)
    engines = open_engines(counterfactuals, language_model, opening)
    edits, quarantine = generate(jobs, *engines, counterfactuals, root, opening.state, prepare)
    return edits, quarantine, publish(edits.column("image").to_pylist(), opening.state)


def preview_counterfactuals(
    counterfactuals: Sequence[Counterfactual],
    images: Path,
    valid_captions: Sequence[Caption],
    dataset: str,
    root: Path,
) -> dict[str, str | bytes]:
    """Page of captions, their edits and the images of both."""
    page = counterfactuals_page(counterfactuals, valid_captions, root, images, dataset)
    return page.files("index.html")


def check_counterfactuals(
    counterfactuals: Sequence[Counterfactual], settings: CounterfactualSettings, preview: Path
) -> dict[str, Any]:
    """Summary of the edits.

    Raises an error if too many failed, after the preview.
    """
    refuse_too_many(counterfactuals, settings.tolerated_share, preview)
    return summary(counterfactuals)
