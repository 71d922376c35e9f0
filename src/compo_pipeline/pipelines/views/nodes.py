"""Nodes of the pipeline `views`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from compo_pipeline.engines import PrepareSettings
from compo_pipeline.language.parsing import CaptionParser, loaded, name_and_version
from compo_pipeline.methods import registry
from compo_pipeline.methods.contract import ViewContext
from compo_pipeline.methods.views import EpochViews, ViewSettings, by_sample, write
from compo_pipeline.presentation import views_page
from compo_pipeline.records import Caption, Counterfactual, Parse
from compo_pipeline.tables.files import Parts
from compo_pipeline.tables.rows import Table, training_rows


def parse_captions(
    valid_captions: Sequence[Caption],
    language_model: str,
    views: ViewSettings,
    method: str,
    method_views: Mapping[str, Any],
    prepare: PrepareSettings,
) -> Iterable[Parse]:
    """Parses of the captions' sentences that a method needs: none, the first ones, or all."""
    registry.build(method, method_views)  # wrong settings are refused before minutes of parsing
    needs = registry.find(method)
    if not needs.parses:
        return []
    rows = training_rows(valid_captions, views.split)
    read = None if needs.further_parses else 1
    fingerprint = f"{rows.fingerprint} {name_and_version(loaded(language_model))} {read}"
    parser = CaptionParser(rows, language_model, read)
    return Parts("parsing captions", parser, len(rows), fingerprint, prepare)


def draw_views(
    valid_captions: Sequence[Caption],
    parses: Sequence[Parse],
    counterfactuals: Sequence[Counterfactual],
    language_model: str,
    views: ViewSettings,
    seed: int,
    folder: str,
    method: str,
    method_views: Mapping[str, Any],
    prepare: PrepareSettings,
) -> Path:
    """The views of every epoch, in a folder of tables."""
    rows, parsed = training_rows(valid_captions, views.split), Table.of(parses, Parse)
    edited = Table.of(counterfactuals, Counterfactual)
    language = name_and_version(loaded(language_model)) if parses else ""
    context = ViewContext.of(parsed, language, seed, by_sample(edited))
    drawing = registry.build(method, method_views)
    drawn_from = [method, str(drawing.configuration["views"]), language, str(seed)]
    drawn_from += [table.fingerprint for table in (rows, parsed, edited)]
    write(drawing, rows, context, views.epochs, Path(folder), " ".join(drawn_from), prepare)
    return Path(folder)


def preview_views(
    views: Path,
    counterfactual_images: Path,
    method: str,
    dataset: str,
    seed: int,
    root: Path,
    folder: str,
) -> Path:
    """A page of random views of the first epoch, to look at."""
    shown = views_page.Heading(method, dataset, epoch=0, seed=seed)
    page, rows = Path(folder) / "index.html", EpochViews(views).epoch(0)
    views_page.write(rows, Path(root), page, shown, counterfactual_images=counterfactual_images)
    return Path(folder)
