"""Nodes of the pipeline `views`."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from compo_pipeline.datasets.annotations import read
from compo_pipeline.datasets.settings import DataSettings
from compo_pipeline.language.parsing import CaptionParser, load_once, name_and_version
from compo_pipeline.methods import registry
from compo_pipeline.methods.contract import Method, ViewContext
from compo_pipeline.methods.mixture import Mixture
from compo_pipeline.methods.views import (
    FROM_TABLE,
    EpochViews,
    ViewSettings,
    annotated_contents,
    annotations_of,
    by_sample,
    write,
)
from compo_pipeline.presentation import views_page
from compo_pipeline.run.engines import PrepareSettings
from compo_pipeline.storage.files import FolderWriter
from compo_pipeline.storage.records import Annotation, Caption, Counterfactual, Parse
from compo_pipeline.storage.table_files import Parts
from compo_pipeline.storage.tables import Splits, Table, training_rows

log = logging.getLogger(__name__)


def choose_rows(valid_captions: Table[Caption], split: Splits) -> Table[Caption]:
    """Caption rows of the training splits."""
    return training_rows(valid_captions, split)


def build_method(method: str, method_views: Mapping[str, Any]) -> Method:
    """Create the configured method, which draws the views; wrong settings fail before parsing."""
    return registry.build(method, method_views)


def parse_captions(
    rows: Table[Caption], method: Method, language_model: str, prepare: PrepareSettings
) -> Iterable[Parse]:
    """Parses of the captions' sentences that a method needs: none, the first ones, or all."""
    needs = registry.find(method.name)
    if not needs.parses:
        return []
    read = None if needs.further_parses else 1
    fingerprint = f"{rows.fingerprint} {name_and_version(load_once(language_model))} {read}"
    parser = CaptionParser(rows, language_model, read)
    return Parts("parsing captions", parser, len(rows), fingerprint, prepare)


def join_annotations(
    rows: Table[Caption], method: Method, views: ViewSettings
) -> Sequence[Annotation]:
    """Columns of the external table `views.from_table` joined to the rows; empty if unset."""
    contents = annotated_contents(method, views.from_table)
    if not contents:
        return []
    unused = set(views.from_table.read.contents) - contents
    if unused:
        log.info("%s has no use for %s of the table.", method.name, ", ".join(sorted(unused)))
    return read(views.from_table, contents, rows, FROM_TABLE, method.annotated_sentences)


def choose_context(
    parses: Sequence[Parse],
    counterfactuals: Sequence[Counterfactual],
    annotations: Sequence[Annotation],
    method: Method,
    views: ViewSettings,
    language_model: str,
    seed: int,
) -> tuple[ViewContext, str]:
    """Parses, counterfactuals and annotations for drawing views, with a fingerprint."""
    parsed, edited = Table.of(parses, Parse), Table.of(counterfactuals, Counterfactual)
    language = name_and_version(load_once(language_model)) if parses else ""
    others = annotations_of(method, views.from_table, annotations)
    context = ViewContext.from_parses(parsed, language, seed, by_sample(edited), others)
    fingerprints = f"{parsed.fingerprint} {edited.fingerprint} {others.fingerprint}"
    return context, f"{language} {seed} {fingerprints}"


def draw_views(
    rows: Table[Caption],
    method: Method,
    context: ViewContext,
    context_fingerprint: str,
    views: ViewSettings,
    prepare: PrepareSettings,
    data: DataSettings,
) -> FolderWriter:
    """Return a function that draws and writes the training views of every epoch, one table each."""
    drawn_from = f"{method.name} {method.configuration['views']} {rows.fingerprint}"
    fingerprint = f"{drawn_from} {context_fingerprint} {views.long_share}"
    mixture = Mixture.from_weights(data.weights, data.epoch_rows, context.seed)
    if mixture is not None:
        fingerprint = f"{fingerprint} {mixture}"
    return partial(
        write,
        method,
        rows,
        context,
        views.epochs,
        fingerprint=fingerprint,
        engine=prepare,
        long_share=views.long_share,
        mixture=mixture,
    )


def preview_views(
    views: Path,
    counterfactual_images: Path,
    method: str,
    dataset: str,
    seed: int,
    root: Path,
) -> FolderWriter:
    """Return a function that writes an HTML page of random training views of the first epoch."""
    shown = views_page.Heading(method, dataset, epoch=0, seed=seed)
    rows = EpochViews(views).epoch(0)
    page = partial(views_page.write, rows, Path(root))
    return lambda folder: page(
        folder / "index.html", shown, counterfactual_images=counterfactual_images
    )
