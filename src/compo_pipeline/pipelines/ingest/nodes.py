"""Nodes of the pipeline `ingest`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from compo_pipeline.core.engines import PrepareSettings
from compo_pipeline.core.records import Caption, Fact, Recaption, Rejected
from compo_pipeline.core.tables import Table
from compo_pipeline.data.quality.ingest import ingest as ingest_records
from compo_pipeline.data.quality.settings import IngestSettings
from compo_pipeline.data.readers import records_of
from compo_pipeline.data.settings import DataSettings
from compo_pipeline.generation.recaption.recaptioning import Recaptions, captioned_splits
from compo_pipeline.generation.recaption.settings import RecaptionSettings


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
        rows, splits = Table.of(recaptions, Recaption), captioned_splits(recaption, found.sample)
        captions = Recaptions(rows, recaptions_quarantine, recaption, splits)
    records = records_of(found)
    samples = {name: part.sample for name, part in found.parts.items()}
    trains = data.sample.split
    result = ingest_records(records, source, ingest, samples, trains, prepare, carve, captions)
    joined = {name: each.joined for name, each in records.items() if each.joined}
    return result._replace(report={**result.report, "captions_joined": joined})
