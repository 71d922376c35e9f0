"""Nodes of the pipeline `ingest`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from compo_pipeline.core.records import Caption, Fact, Recaption, Rejected
from compo_pipeline.core.table_files import PrepareSettings
from compo_pipeline.core.tables import Table
from compo_pipeline.data.generators import GENERATORS
from compo_pipeline.data.quality.caption_language import Vocabulary
from compo_pipeline.data.quality.ingest import held_out_per_source, used_records
from compo_pipeline.data.quality.ingest import ingest as ingest_records
from compo_pipeline.data.quality.settings import IngestSettings
from compo_pipeline.data.readers import locate, records_of
from compo_pipeline.data.settings import DataSettings
from compo_pipeline.generation.recaption import captioners
from compo_pipeline.generation.recaption import recaptioning as work
from compo_pipeline.generation.recaption.settings import (
    RecaptionSettings,
)
from compo_pipeline.language.parsing import load_once
from compo_pipeline.pages.previews import RECAPTIONS, recaptions_page

log = logging.getLogger(__name__)


def prepare_source(data: DataSettings, generator_settings: Any) -> dict[str, Any]:
    """Generate the source data if their format has a generator, and return a description."""
    if made := data.generated:
        GENERATORS[made.format].generate(generator_settings, made.root)
    return locate(data)


def recaption_images(
    source: dict[str, Any],
    data: DataSettings,
    ingest: IngestSettings,
    recaption: RecaptionSettings,
    language_model: str,
    prepare: PrepareSettings,
    carve: int,
    state: str,
    dataset: str,
) -> tuple[Sequence[Recaption], Sequence[Rejected], dict[str, Any], dict[str, str | bytes]]:
    """Caption the images of the records that ingest uses, empty without a captioner.

    Returns:
        New captions, rejected answers, counts of both, and a page of old and new captions.
    """
    if recaption.captioner is None:
        log.info("No captioner is set (recaption.captioner): the captions are the source's own.")
        return (), (), {}, {}
    root = Path(source["root"])
    found = replace(data, root=root)
    records = records_of(found)
    left = held_out_per_source(carve, len(records))
    used = (used_records(own, found.parts[name].sample, left)[0] for name, own in records.items())
    splits = work.captioned_splits(recaption, found.sample)
    images = work.captioned_images(chain.from_iterable(used), splits)
    if recaption.dry_run is not None:
        images = work.drawn(images, recaption.dry_run)
    captioner = _captioner(recaption, Path(state))
    vocabulary = Vocabulary(load_once(language_model))
    made = work.recaption(images, root, captioner, recaption, ingest, vocabulary, prepare)
    return *made, recaptions_page(made, root, dataset).files(RECAPTIONS)


def ingest_captions(
    source: dict[str, Any],
    data: DataSettings,
    ingest: IngestSettings,
    prepare: PrepareSettings,
    carve: int = 0,
    recaption: RecaptionSettings | None = None,
    recaptions: Sequence[Recaption] = (),
    recaptions_quarantine: Sequence[Rejected] = (),
) -> tuple[Sequence[Caption], Sequence[Fact], list[Rejected], dict[str, Any], dict[str, Any]]:
    """Read the source: caption rows, facts about them, rejected records, report, manifest.

    With a captioner, the recaptions take the place of the source's captions.
    """
    found = replace(data, root=Path(source["root"]))
    captions = None
    if recaption is not None and recaption.captioner is not None:
        rows, splits = (
            Table.of(recaptions, Recaption),
            work.captioned_splits(recaption, found.sample),
        )
        captions = work.Recaptions(rows, recaptions_quarantine, recaption, splits)
    records = records_of(found)
    samples = {name: part.sample for name, part in found.parts.items()}
    trains = data.sample.split
    result = ingest_records(records, source, ingest, samples, trains, prepare, carve, captions)
    joined = {name: each.joined for name, each in records.items() if each.joined}
    return result._replace(report={**result.report, "captions_joined": joined})


def _captioner(settings: RecaptionSettings, state: Path) -> captioners.Captioner:
    """Create the configured captioner, which stores its answers in a folder."""
    own: Any = getattr(settings, settings.captioner or "")
    if settings.captioner == "endpoint":
        return captioners.EndpointCaptioner(settings, own, state)
    return captioners.LocalCaptioner(settings, own, state)
