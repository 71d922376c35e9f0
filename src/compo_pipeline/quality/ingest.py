"""From the records of a source to caption rows, facts, a report and a manifest."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from compo_pipeline.datasets.readers.record import NOT_DOWNLOADED, RawCaption
from compo_pipeline.datasets.settings import SampleSettings
from compo_pipeline.images.decoding import DecodedImage
from compo_pipeline.quality import facts, images, manifest
from compo_pipeline.quality.preparation import Preparation
from compo_pipeline.quality.sampling import Sample
from compo_pipeline.quality.settings import IngestSettings
from compo_pipeline.records import Caption, Fact, Rejected

_log = logging.getLogger(__name__)


class Ingested(NamedTuple):
    """What ingest makes of a source; rows are in the source's order."""

    captions: list[Caption]
    facts: list[Fact]
    unparseable: list[Rejected]
    report: dict[str, Any]
    manifest: dict[str, Any]


def ingest(
    records: Iterable[RawCaption | Rejected],
    source: Mapping[str, Any],
    settings: IngestSettings,
    drawn: SampleSettings | None = None,
) -> Ingested:
    """Prepare and measure every record of the sample; what cannot be parsed is kept apart.

    Args:
        records: what the readers yield.
        source: what `compo_pipeline.datasets.sources.locate` found.
        settings: how to prepare and measure.
        drawn: which records are taken; all of them by default.
    """
    sample = Sample(drawn or SampleSettings())
    preparation = Preparation(settings.sentences, settings.shown)
    root, splits = Path(source["root"]), source["splits"]
    rows, words, unparseable = _prepared(sample.of(records), preparation, source["format"])
    found = images.measure(root, (row.image for row in rows), settings)
    rows = [
        replace(row, width=found[row.image].width, height=found[row.image].height) for row in rows
    ]
    annotations = [name for split in splits.values() for name in split["annotations"]]
    return Ingested(
        rows,
        list(facts.measured(rows, words, found, list(splits))),
        unparseable,
        {
            **_report(rows, unparseable, found),
            "downloads": _downloads(splits, unparseable),
            "sample": sample.report(),
            **preparation.report(),
        },
        manifest.of(root, annotations, found),
    )


def _prepared(
    records: Iterable[RawCaption | Rejected], preparation: Preparation, source: str
) -> tuple[list[Caption], list[tuple[int, ...]], list[Rejected]]:
    """Rows, the numbers of words of their sentences, and the records that are no rows."""
    rows: list[Caption] = []
    words: list[tuple[int, ...]] = []
    unparseable: list[Rejected] = []
    for record in records:
        if isinstance(record, Rejected):
            unparseable.append(record)
            continue
        counted = preparation.sentences(record)
        rows.append(_row(record, tuple(sentence for sentence, _ in counted), source))
        words.append(tuple(count for _, count in counted))
    return rows, words, unparseable


def _row(record: RawCaption, sentences: tuple[str, ...], source: str) -> Caption:
    """A row whose image is yet to be measured."""
    return Caption(
        sample_id=record.sample_id,
        image_id=record.image_id,
        image=record.image,
        width=0,
        height=0,
        sentences=sentences,
        source=source,
        split=record.split,
    )


def _report(
    rows: list[Caption],
    unparseable: list[Rejected],
    found: Mapping[str, DecodedImage],
) -> dict[str, Any]:
    """Counts that a person wants to see before training on the rows."""
    errors = Counter(image.error.partition(":")[0] for image in found.values() if image.error)
    return {
        "rows": len(rows),
        "rows_by_split": dict(Counter(row.split for row in rows)),
        "unparseable": sum(entry.rule != NOT_DOWNLOADED for entry in unparseable),
        "images": len(found),
        "images_unreadable": dict(sorted(errors.items())),
    }


def _downloads(splits: Mapping[str, Any], unparseable: list[Rejected]) -> dict[str, float]:
    """How many of a source's images were fetched, where its metadata say so."""
    records = sum(split["records"] for split in splits.values())
    failed = sum(entry.rule == NOT_DOWNLOADED for entry in unparseable)
    share = 1 - failed / records if records else 0.0
    if failed:
        _log.warning(
            "%d of %d images were never downloaded: %.1f%% were", failed, records, 100 * share
        )
    return {"failed": failed, "share": share}
