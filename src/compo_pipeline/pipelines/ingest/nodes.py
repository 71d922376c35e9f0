"""Nodes of the pipeline `ingest`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from compo_pipeline.datasets import readers
from compo_pipeline.datasets.quality.ingest import ingest as ingest_records
from compo_pipeline.datasets.quality.ingest import ingest_sources
from compo_pipeline.datasets.quality.settings import IngestSettings
from compo_pipeline.datasets.readers.record import RawCaption
from compo_pipeline.datasets.settings import DataSettings
from compo_pipeline.run.engines import PrepareSettings
from compo_pipeline.storage.records import Caption, Fact, Rejected


@dataclass(frozen=True)
class _Records:
    """The records of a source, read anew each time; of one of several by its name."""

    data: DataSettings
    name: str | None = None

    def __iter__(self) -> Iterator[RawCaption | Rejected]:
        if self.name is None:
            return readers.read(self.data)
        return readers.read_source(self.data, self.name)


def ingest_captions(
    source: dict[str, Any],
    data: DataSettings,
    ingest: IngestSettings,
    prepare: PrepareSettings,
    carve: int = 0,
) -> tuple[Sequence[Caption], Sequence[Fact], list[Rejected], dict[str, Any], dict[str, Any]]:
    """Caption rows, their facts, what could not be parsed, a report and the manifest."""
    root = Path(source["root"])
    if data.sources:
        found = replace(data, root=root)
        records = {name: _Records(found, name) for name in found.sources}
        samples = {name: part.sample for name, part in found.parts.items()}
        return ingest_sources(records, source, ingest, samples, data.sample.split, prepare, carve)
    found = replace(data, root=root, format=source["format"])
    return ingest_records(_Records(found), source, ingest, found.sample, prepare, carve)
