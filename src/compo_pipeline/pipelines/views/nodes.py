"""Nodes of the views pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compo_pipeline.configuration import parse
from compo_pipeline.records import Caption, Counterfactual, Parse

if TYPE_CHECKING:
    from compo_pipeline.methods.contract import Method


def parse_captions(
    valid_captions: list[Caption],
    language_model: str,
    views: Mapping[str, Any],
    method: str,
    **method_views: Mapping[str, Any],
) -> list[Parse]:
    """Parses of the sentences that the method declares, each parsed once."""
    from compo_pipeline.datasets.splits import training_rows
    from compo_pipeline.language.loading import load
    from compo_pipeline.language.parsing import parse as parse_sentences
    from compo_pipeline.methods.view_tables import ViewSettings

    count = _method(method, method_views).parsed_sentences
    if not count:
        return []
    rows = training_rows(valid_captions, parse(ViewSettings, views, "views").split)
    wanted = [
        (row.sample_id, number, text)
        for row in rows
        for number, text in enumerate(row.sentences[:count])
    ]
    return list(parse_sentences(load(language_model), wanted))


def draw_views(
    valid_captions: list[Caption],
    parses: list[Parse],
    counterfactuals: list[Counterfactual],
    language_model: str,
    views: Mapping[str, Any],
    seed: int,
    folder: str,
    method: str,
    **method_views: Mapping[str, Any],
) -> Path:
    """The views of every epoch, in a folder of tables."""
    from compo_pipeline.datasets.splits import training_rows
    from compo_pipeline.language.loading import identity, load
    from compo_pipeline.methods.contract import Drawing
    from compo_pipeline.methods.view_tables import ViewSettings, by_sample, write

    settings = parse(ViewSettings, views, "views")
    rows = training_rows(valid_captions, settings.split)
    first = {row.sample_id: row for row in parses if row.sentence == 0}
    language = identity(load(language_model)) if parses else ""
    drawing = Drawing(first, language, seed, 0, by_sample(counterfactuals))
    write(_method(method, method_views), rows, drawing, settings.epochs, Path(folder))
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
    from compo_pipeline.methods.view_tables import EpochViews
    from compo_pipeline.presentation.views_page import Heading, write

    shown = Heading(method, dataset, epoch=0, seed=seed)
    page, made = Path(folder) / "index.html", counterfactual_images
    write(EpochViews(views).epoch(0), Path(root), page, shown, made=made)
    return Path(folder)


def _method(method: str, method_views: Mapping[str, Mapping[str, Any]]) -> Method:
    """The method, as far as views are concerned."""
    from compo_pipeline.methods import method_type

    chosen = method_type(method)
    views: Any = parse(chosen.views_type, method_views[method], f"{method}.views")
    return chosen(views, chosen.objective_type())
