"""Nodes of the views pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compo_pipeline.configuration import parse
from compo_pipeline.records import Caption, Counterfactual, Parse


def parse_captions(
    valid_captions: list[Caption],
    language_model: str,
    views: Mapping[str, Any],
    method: str,
    method_views: Mapping[str, Any],
) -> list[Parse]:
    """Parses of the captions' sentences that a method needs: none, the first ones, or all."""
    from compo_pipeline.language.parsing import load
    from compo_pipeline.language.parsing import parse as parse_sentences
    from compo_pipeline.methods import registry
    from compo_pipeline.methods.views import ViewSettings
    from compo_pipeline.records import training_rows

    registry.build(method, method_views)  # wrong settings are refused before minutes of parsing
    needs = registry.find(method)
    if not needs.parses:
        return []
    rows = training_rows(valid_captions, parse(ViewSettings, views, "views").split)
    read = None if needs.further_parses else 1
    sentences = (
        (row.sample_id, place, sentence)
        for row in rows
        for place, sentence in enumerate(row.sentences[:read])
    )
    return list(parse_sentences(load(language_model), sentences))


def draw_views(
    valid_captions: list[Caption],
    parses: list[Parse],
    counterfactuals: list[Counterfactual],
    language_model: str,
    views: Mapping[str, Any],
    seed: int,
    folder: str,
    method: str,
    method_views: Mapping[str, Any],
) -> Path:
    """The views of every epoch, in a folder of tables."""
    from compo_pipeline.language.parsing import load, name_and_version
    from compo_pipeline.methods import registry
    from compo_pipeline.methods.contract import ViewContext
    from compo_pipeline.methods.views import ViewSettings, by_sample, write
    from compo_pipeline.records import training_rows

    settings = parse(ViewSettings, views, "views")
    rows = training_rows(valid_captions, settings.split)
    language = name_and_version(load(language_model)) if parses else ""
    context = ViewContext.of(parses, language, seed, by_sample(counterfactuals))
    write(registry.build(method, method_views), rows, context, settings.epochs, Path(folder))
    return Path(folder)


def preview_views(
    views: Path,
    counterfactual_images: Path,
    method: str,
    dataset: str,
    seed: int,
    root: str,
    folder: str,
) -> Path:
    """A page of random views of the first epoch, to look at."""
    from compo_pipeline.methods.views import EpochViews
    from compo_pipeline.presentation.views_page import Heading, write

    shown = Heading(method, dataset, epoch=0, seed=seed)
    page = Path(folder) / "index.html"
    write(
        EpochViews(views).epoch(0),
        Path(root),
        page,
        shown,
        counterfactual_images=counterfactual_images,
    )
    return Path(folder)
