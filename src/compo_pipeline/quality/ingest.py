"""From the records of a source to caption rows, facts, a report and a manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from compo_pipeline.datasets.readers.record import RawCaption
from compo_pipeline.images.decoding import Picture
from compo_pipeline.quality import facts, manifest, pictures
from compo_pipeline.quality.preparation import Preparation
from compo_pipeline.quality.settings import IngestSettings
from compo_pipeline.records import Caption, Fact, Rejected


class Ingested(NamedTuple):
    """What ingest makes of a source; rows are in the source's order."""

    captions: list[Caption]
    facts: list[Fact]
    unparseable: list[Rejected]
    report: dict[str, Any]
    manifest: dict[str, Any]


def ingest(
    records: Iterable[RawCaption | Rejected], source: Mapping[str, Any], settings: IngestSettings
) -> Ingested:
    """Prepare and measure every record; nothing is left out here but what cannot be parsed.

    Args:
        records: what the readers yield.
        source: what `compo_pipeline.datasets.sources.locate` found.
        settings: how to prepare and measure.
    """
    preparation = Preparation(settings.sentences, settings.shown)
    root = Path(source["root"])
    rows: list[Caption] = []
    words: list[tuple[int, ...]] = []
    unparseable: list[Rejected] = []
    for record in records:
        if isinstance(record, Rejected):
            unparseable.append(record)
            continue
        counted = preparation.sentences(record)
        rows.append(_row(record, tuple(sentence for sentence, _ in counted), source["format"]))
        words.append(tuple(count for _, count in counted))
    found = pictures.measure(root, (row.image for row in rows), settings)
    rows = [
        replace(row, width=found[row.image].width, height=found[row.image].height) for row in rows
    ]
    splits = source["splits"]
    annotations = [name for split in splits.values() for name in split["annotations"]]
    return Ingested(
        rows,
        list(facts.measured(rows, words, found, list(splits))),
        unparseable,
        _report(rows, unparseable, found, preparation),
        manifest.of(root, annotations, found),
    )


def _row(record: RawCaption, sentences: tuple[str, ...], source: str) -> Caption:
    """A row whose picture is yet to be measured."""
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
    found: Mapping[str, Picture],
    preparation: Preparation,
) -> dict[str, Any]:
    """Counts that a person wants to see before training on the rows."""
    errors = Counter(picture.error.partition(":")[0] for picture in found.values() if picture.error)
    return {
        "rows": len(rows),
        "rows_by_split": dict(Counter(row.split for row in rows)),
        "unparseable": len(unparseable),
        "pictures": len(found),
        "pictures_unreadable": dict(sorted(errors.items())),
        **preparation.report(),
    }
