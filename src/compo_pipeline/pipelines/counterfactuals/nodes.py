"""Nodes of the counterfactuals pipeline."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from compo_pipeline.configuration import parse
from compo_pipeline.engines import KEY as ENGINE_KEY
from compo_pipeline.engines import PrepareSettings
from compo_pipeline.methods.registry import METHODS, find
from compo_pipeline.records import Caption, Counterfactual, Fact, Rejected

_log = logging.getLogger(__name__)


def make_counterfactuals(
    valid_captions: Sequence[Caption],
    facts: Sequence[Fact],
    counterfactuals: Mapping[str, Any],
    split: str,
    language_model: str,
    root: str,
    world: Mapping[str, Any],
    folder: str,
    state: str,
    method: str,
    prepare: Mapping[str, Any],
) -> tuple[Sequence[Counterfactual], Sequence[Rejected], Path]:
    """Edited captions of the rows that train, failures, and the folder of counterfactual images.

    Methods that train on none get none. Failures do not stop this node, so all tables are saved.
    """
    if not find(method).counterfactuals:
        names = ", ".join(name for name, entry in METHODS.items() if entry.counterfactuals)
        _log.info("%s trains on no counterfactuals: none are made (only for %s).", method, names)
        shutil.rmtree(folder, ignore_errors=True)
        Path(folder).mkdir(parents=True)
        return [], [], Path(folder)
    from compo_pipeline.counterfactuals.generation import Folders, generate
    from compo_pipeline.counterfactuals.settings import KEY, CounterfactualSettings
    from compo_pipeline.pipelines.counterfactuals.factory import open_all
    from compo_pipeline.tables.rows import Table, training_rows

    settings = parse(CounterfactualSettings, counterfactuals, KEY)
    rows = training_rows(valid_captions, split)
    folders = Folders(Path(root), Path(folder), Path(state))
    editor, parser, generator = open_all(
        settings,
        rows,
        language_model=language_model,
        root=folders.root,
        world=world,
        state=folders.state,
    )
    measured = Table.of(facts, Fact)
    hashes = measured.column("image_hash").take(measured.places("image", rows.column("image")))
    engine = parse(PrepareSettings, prepare, ENGINE_KEY)
    edits, quarantine = generate(rows, hashes, editor, parser, generator, settings, folders, engine)
    return edits, quarantine, folders.images


def preview_counterfactuals(
    counterfactuals: Sequence[Counterfactual],
    images: Path,
    valid_captions: Sequence[Caption],
    dataset: str,
    root: str,
    folder: str,
) -> Path:
    """An HTML page of captions, their edits and the images of both."""
    from compo_pipeline.presentation.counterfactuals_page import write

    page = Path(folder) / "index.html"
    write(counterfactuals, valid_captions, Path(root), images, page, dataset)
    return Path(folder)


def check_counterfactuals(
    counterfactuals: Sequence[Counterfactual], settings: Mapping[str, Any], preview: Path
) -> dict[str, Any]:
    """Number of edits; raises where too many failed, after the preview is written."""
    from compo_pipeline.counterfactuals.settings import KEY, CounterfactualSettings
    from compo_pipeline.counterfactuals.tables import refuse_too_many, summary

    tolerated = parse(CounterfactualSettings, settings, KEY).tolerated_share
    refuse_too_many(counterfactuals, tolerated, preview)
    return summary(counterfactuals)
