"""Nodes of the counterfactuals pipeline."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compo_pipeline.configuration import parse
from compo_pipeline.method_names import TRAIN_ON_COUNTERFACTUALS
from compo_pipeline.records import Caption, Counterfactual, Fact, Rejected

_log = logging.getLogger(__name__)


def make_counterfactuals(
    valid_captions: list[Caption],
    facts: list[Fact],
    counterfactuals: Mapping[str, Any],
    split: str,
    language_model: str,
    root: str,
    world: Mapping[str, Any],
    folder: str,
    state: str,
    method: str,
) -> tuple[list[Counterfactual], list[Rejected], Path]:
    """Edits of the captions that train, what failed of them, and the folder of images.

    A method that trains on none gets none. Nothing fails here for the number of failures, so all
    tables are saved.
    """
    if method not in TRAIN_ON_COUNTERFACTUALS:
        wanting = ", ".join(TRAIN_ON_COUNTERFACTUALS)
        _log.info("%s trains on no counterfactuals: none are made (%s do).", method, wanting)
        shutil.rmtree(folder, ignore_errors=True)
        Path(folder).mkdir(parents=True)
        return [], [], Path(folder)
    from compo_pipeline.counterfactuals.choosing import KEY, Choice
    from compo_pipeline.counterfactuals.making import Places, make
    from compo_pipeline.counterfactuals.settings import CounterfactualSettings
    from compo_pipeline.datasets.splits import training_rows

    settings = parse(CounterfactualSettings, counterfactuals, KEY)
    rows = training_rows(valid_captions, split)
    places = Places(Path(root), Path(folder), Path(state))
    choice = Choice(settings, rows, places.root, world, places.state)
    hashes = {fact.image: fact.image_hash for fact in facts}
    asked = (choice.writer(), choice.parsing(language_model), choice.maker())
    made, quarantine = make(rows, hashes, asked, settings, places)
    return made, quarantine, places.images


def preview_counterfactuals(
    counterfactuals: list[Counterfactual],
    images: Path,
    valid_captions: list[Caption],
    dataset: str,
    root: str,
    folder: str,
) -> Path:
    """A page of captions, their edits and the images of both, to look at."""
    from compo_pipeline.presentation.counterfactuals_page import write

    page = Path(folder) / "index.html"
    write(counterfactuals, valid_captions, Path(root), images, page, dataset)
    return Path(folder)


def check_counterfactuals(
    counterfactuals: list[Counterfactual], settings: Mapping[str, Any], preview: Path
) -> dict[str, Any]:
    """How many edits there are; refused when too many failed. The preview is there by then."""
    from compo_pipeline.counterfactuals.choosing import KEY
    from compo_pipeline.counterfactuals.settings import CounterfactualSettings
    from compo_pipeline.counterfactuals.tables import refuse_too_many, summary

    tolerated = parse(CounterfactualSettings, settings, KEY).tolerated_share
    refuse_too_many(counterfactuals, tolerated, preview)
    return summary(counterfactuals)
