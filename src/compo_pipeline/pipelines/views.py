"""Pipeline `views`: training examples of every epoch, as tables on disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kedro.pipeline import Pipeline, node

from compo_pipeline.engines import PrepareSettings
from compo_pipeline.methods.views import ViewSettings
from compo_pipeline.records import Caption, Counterfactual, Parse


def parse_captions(
    valid_captions: Sequence[Caption],
    language_model: str,
    views: ViewSettings,
    method: str,
    method_views: Mapping[str, Any],
    prepare: PrepareSettings,
) -> Iterable[Parse]:
    """Parses of the captions' sentences that a method needs: none, the first ones, or all."""
    from compo_pipeline.language.parsing import CaptionParser, loaded, name_and_version
    from compo_pipeline.methods import registry
    from compo_pipeline.tables.files import Parts
    from compo_pipeline.tables.rows import training_rows

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
    from compo_pipeline.language.parsing import loaded, name_and_version
    from compo_pipeline.methods import registry
    from compo_pipeline.methods.contract import ViewContext
    from compo_pipeline.methods.views import by_sample, write
    from compo_pipeline.tables.rows import Table, training_rows

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
    from compo_pipeline.methods.views import EpochViews
    from compo_pipeline.presentation.views_page import Heading, write

    shown = Heading(method, dataset, epoch=0, seed=seed)
    page, rows = Path(folder) / "index.html", EpochViews(views).epoch(0)
    write(rows, Path(root), page, shown, counterfactual_images=counterfactual_images)
    return Path(folder)


def create_pipeline() -> Pipeline:
    """Valid captions to parses to views, and a page of them to look at."""
    common = {
        "valid_captions": "valid_captions",
        "language_model": "params:language.model",
        "views": "params:views",
        "method": "params:method",
        "method_views": "params:method_settings.views",
        "prepare": "params:prepare",
    }
    return Pipeline(
        [
            node(parse_captions, inputs=common, outputs="parses", name="parse_captions"),
            node(
                draw_views,
                inputs={
                    **common,
                    "parses": "parses",
                    "counterfactuals": "counterfactuals",
                    "seed": "params:seed",
                    "folder": "params:paths.views",
                },
                outputs="views",
                name="draw_views",
            ),
            node(
                preview_views,
                inputs={
                    "views": "views",
                    "counterfactual_images": "counterfactual_images",
                    "method": "params:method",
                    "dataset": "params:dataset",
                    "seed": "params:seed",
                    "root": "params:data.root",
                    "folder": "params:paths.views_preview",
                },
                outputs="views_preview",
                name="preview_views",
            ),
        ]
    )
