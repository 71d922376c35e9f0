"""Nodes of the pipeline `ingest`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from compo_pipeline.datasets import readers
from compo_pipeline.datasets.quality.ingest import ingest as ingest_records
from compo_pipeline.datasets.quality.settings import IngestSettings
from compo_pipeline.datasets.settings import DataSettings
from compo_pipeline.run.engines import PrepareSettings
from compo_pipeline.storage.records import Caption, Fact, Rejected


def ingest_captions(
    source: dict[str, Any], data: DataSettings, ingest: IngestSettings, prepare: PrepareSettings
) -> tuple[Sequence[Caption], Sequence[Fact], list[Rejected], dict[str, Any], dict[str, Any]]:
    """Caption rows, their facts, what could not be parsed, a report and the manifest."""
    found = replace(data, root=Path(source["root"]), format=source["format"])
    return ingest_records(readers.read(found), source, ingest, found.sample, prepare)
