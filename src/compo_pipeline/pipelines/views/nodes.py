"""Nodes of the pipeline `views`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from compo_pipeline.core.records import Annotation, Caption, Counterfactual, Parse
from compo_pipeline.core.table_files import Parts, PrepareSettings
from compo_pipeline.core.tables import Splits, Table, training_rows
from compo_pipeline.data.annotations import Annotations, read
from compo_pipeline.data.settings import DataSettings
from compo_pipeline.language.parsing import CaptionParser, load_once, name_and_version
from compo_pipeline.methods import registry
from compo_pipeline.methods import views as epochs
from compo_pipeline.methods.contract import ViewContext
from compo_pipeline.methods.views import Mixture, ViewSettings
from compo_pipeline.pages.previews import views_page


def parse_captions(
    valid_captions: Table[Caption],
    split: Splits,
    method: str,
    language_model: str,
    prepare: PrepareSettings,
) -> Iterable[Parse] | Parts[Parse]:
    """Parses of the training captions' sentences that the method needs: none, the first or all."""
    needs = registry.find(method)
    if not needs.parses:
        return []
    rows, read = training_rows(valid_captions, split), None if needs.further_parses else 1
    fingerprint = f"{rows.fingerprint} {name_and_version(load_once(language_model))} {read}"
    parser = CaptionParser(rows, language_model, read)
    return Parts("parsing captions", parser, len(rows), fingerprint, prepare)


def join_annotations(
    valid_captions: Table[Caption],
    method: str,
    method_views: Mapping[str, Any],
    views: ViewSettings,
) -> Sequence[Annotation]:
    """Columns of the external table `views.from_table` joined to the training rows, if one is set.

    Without a table there are none.
    """
    drawing = registry.build(method, method_views)
    contents = epochs.annotated_contents(drawing, views.from_table)
    if not contents:
        return []
    rows, sentences = training_rows(valid_captions, views.split), drawing.annotated_sentences
    return read(views.from_table, contents, rows, epochs.FROM_TABLE, sentences)


def draw_views(
    valid_captions: Table[Caption],
    parses: Sequence[Parse],
    counterfactuals: Sequence[Counterfactual],
    annotations: Sequence[Annotation],
    method: str,
    method_views: Mapping[str, Any],
    views: ViewSettings,
    data: DataSettings,
    language_model: str,
    seed: int,
    state: str,
    prepare: PrepareSettings,
) -> Path:
    """Draw the training views of every epoch, one table each, and return the folder of them."""
    rows, drawing = training_rows(valid_captions, views.split), registry.build(method, method_views)
    parsed, edited = Table.of(parses, Parse), Table.of(counterfactuals, Counterfactual)
    language = name_and_version(load_once(language_model)) if parses else ""
    contents = epochs.annotated_contents(drawing, views.from_table)
    others = Annotations.from_rows(annotations, views.from_table, contents)
    mixture = Mixture(data.weights, data.epoch_rows, seed)
    tables = " ".join(each.fingerprint for each in (rows, parsed, edited, others))
    drawn_from = f"{method} {drawing.configuration['views']} {tables} {language} {seed}"
    folder = Path(state) / "views"
    epochs.write(
        drawing,
        rows,
        ViewContext.from_parses(parsed, language, seed, epochs.by_sample(edited), others),
        views.epochs,
        folder,
        fingerprint=f"{drawn_from} {views.long_share} {mixture}",
        engine=prepare,
        long_share=views.long_share,
        mixture=mixture,
    )
    return folder


def preview_views(
    views: Path,
    counterfactual_images: Path,
    method: str,
    dataset: str,
    seed: int,
    root: Path,
) -> dict[str, str | bytes]:
    """HTML page of random training views of the first epoch."""
    drawn, made = epochs.EpochViews(views).epoch(0), counterfactual_images
    page = views_page(drawn, root, made, method, dataset, epoch=0, seed=seed)
    return page.files("index.html")
