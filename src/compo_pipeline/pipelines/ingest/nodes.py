"""Nodes of the pipeline `ingest`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from compo_pipeline.datasets import readers
from compo_pipeline.datasets.quality.ingest import ingest as ingest_records
from compo_pipeline.datasets.quality.settings import IngestSettings
from compo_pipeline.datasets.readers.record import RawCaption
from compo_pipeline.datasets.settings import DataSettings
from compo_pipeline.run.engines import PrepareSettings
from compo_pipeline.storage.records import Caption, Fact, Rejected


@dataclass(frozen=True)
class _Records:
    """The records of a source, read anew each time."""

    data: DataSettings

    def __iter__(self) -> Iterator[RawCaption | Rejected]:
        return readers.read(self.data)


def ingest_captions(
    source: dict[str, Any],
    data: DataSettings,
    ingest: IngestSettings,
    prepare: PrepareSettings,
    carve: int = 0,
) -> tuple[Sequence[Caption], Sequence[Fact], list[Rejected], dict[str, Any], dict[str, Any]]:
    """Caption rows, their facts, what could not be parsed, a report and the manifest."""
    found = replace(data, root=Path(source["root"]), format=source["format"])
    return ingest_records(_Records(found), source, ingest, found.sample, prepare, carve)
