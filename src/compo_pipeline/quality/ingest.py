"""Ingest: from the records of a source to caption rows, facts, a report and a manifest."""

from __future__ import annotations

import hashlib
import heapq
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from compo_pipeline.datasets.readers.record import NOT_DOWNLOADED, RawCaption
from compo_pipeline.datasets.settings import SampleSettings
from compo_pipeline.images.decoding import DecodedImage
from compo_pipeline.quality import images
from compo_pipeline.quality.preparation import Preparation
from compo_pipeline.quality.settings import IngestSettings
from compo_pipeline.records import Caption, Fact, Rejected
from compo_pipeline.seeding import digest
from compo_pipeline.storage import file_sha256

log = logging.getLogger(__name__)


class Ingested(NamedTuple):
    """Results of ingest; rows are in the source's order."""

    captions: list[Caption]
    facts: list[Fact]
    unparseable: list[Rejected]
    report: dict[str, Any]
    manifest: dict[str, Any]


def ingest(
    records: Iterable[RawCaption | Rejected],
    source: Mapping[str, Any],
    settings: IngestSettings,
    sample: SampleSettings | None = None,
) -> Ingested:
    """Prepare and measure every record of the sample.

    Args:
        records: what the readers yield.
        source: the result of `compo_pipeline.datasets.readers.locate`.
        settings: how to prepare and measure.
        sample: which records are used; all of them by default.
    """
    sample = sample or SampleSettings()
    preparation = Preparation(settings.sentences, settings.shown)
    root, splits = Path(source["root"]), source["splits"]
    rows: list[Caption] = []
    words: list[tuple[int, ...]] = []
    unparseable: list[Rejected] = []
    sampled = None
    if sample.rows is not None:
        records, sampled = draw_sample(records, sample)
    for record in records:
        if isinstance(record, Rejected):
            unparseable.append(record)
            continue
        counted = preparation.sentences(record)
        rows.append(
            Caption(
                sample_id=record.sample_id,
                image_id=record.image_id,
                image=record.image,
                width=0,  # until the image is measured
                height=0,
                sentences=tuple(sentence for sentence, _ in counted),
                source=source["format"],
                split=record.split,
            )
        )
        words.append(tuple(count for _, count in counted))
    measured = images.measure(root, (row.image for row in rows), settings)
    rows = [
        replace(row, width=measured[row.image].width, height=measured[row.image].height)
        for row in rows
    ]
    errors = Counter(image.error.partition(":")[0] for image in measured.values() if image.error)
    report = {
        "rows": len(rows),
        "rows_by_split": dict(Counter(row.split for row in rows)),
        "unparseable": sum(entry.rule != NOT_DOWNLOADED for entry in unparseable),
        "images": len(measured),
        "images_unreadable": dict(sorted(errors.items())),
        "downloads": _downloads(splits, unparseable),
        "sample": sampled,
        **preparation.report(),
    }
    annotations = [name for split in splits.values() for name in split["annotations"]]
    return Ingested(
        captions=rows,
        facts=list(facts_of(rows, words, measured, list(splits))),
        unparseable=unparseable,
        report=report,
        manifest=manifest_of(root, annotations, measured),
    )


def draw_sample(
    records: Iterable[RawCaption | Rejected], settings: SampleSettings
) -> tuple[list[RawCaption | Rejected], dict[str, int | str]]:
    """A seeded random sample of one split; records of other splits and rejected ones all remain.

    The hash of a record's id is its rank, so neither the order of the files nor added records
    change which of two others is preferred.

    Returns:
        The records in their order, and the entry of the ingest report.
    """
    assert settings.rows is not None
    seen = 0
    passed: list[tuple[int, RawCaption | Rejected]] = []
    # Max-heap by rank: the first entry is the next to be dropped.
    drawn: list[tuple[int, int, RawCaption]] = []
    for place, record in enumerate(records):
        if isinstance(record, Rejected) or record.split != settings.split:
            passed.append((place, record))
            continue
        seen += 1
        candidate = (-digest(settings.seed, record.sample_id), -place, record)
        if len(drawn) < settings.rows:
            heapq.heappush(drawn, candidate)
        elif candidate > drawn[0]:
            heapq.heapreplace(drawn, candidate)
    passed += [(-place, record) for _, place, record in drawn]
    report: dict[str, int | str] = {"split": settings.split, "seed": settings.seed}
    report |= {"records": seen, "taken": len(drawn)}
    return [record for _, record in sorted(passed, key=lambda entry: entry[0])], report


def facts_of(
    captions: Sequence[Caption],
    words: Sequence[Sequence[int]],
    images: Mapping[str, DecodedImage],
    splits: Sequence[str],
) -> Iterator[Fact]:
    """One fact per caption row.

    Of rows that repeat each other within a split the first is clean. An image in several splits
    belongs to the last of them: held-out data keep their images, and the earlier rows leak.

    Args:
        captions: the rows.
        words: per row, the number of words of each sentence.
        images: measurements by path.
        splits: all splits, the held-out ones last.
    """
    rank = {split: place for place, split in enumerate(splits)}
    # Equal images have equal bytes; one that does not decode equals only itself.
    contents = {path: path if image.error else image.sha256 for path, image in images.items()}
    last_split: dict[str, int] = {}
    for caption in captions:
        content = contents[caption.image]
        last_split[content] = max(rank[caption.split], last_split.get(content, 0))
    ids: set[str] = set()
    pairs: set[tuple[str, str, str]] = set()
    for row, (caption, counts) in enumerate(zip(captions, words, strict=True)):
        image, content = images[caption.image], contents[caption.image]
        pair = (caption.split, content, caption.sentences[0] if caption.sentences else "")
        yield Fact(
            row=row,
            sample_id=caption.sample_id,
            image=caption.image,
            split=caption.split,
            image_hash=image.sha256,
            decode_error=image.error,
            width=image.width,
            height=image.height,
            sentences=len(counts),
            least_words=min(counts, default=0),
            most_words=max(counts, default=0),
            repeats_id=caption.sample_id in ids,
            repeats_pair=pair in pairs,
            leaks=rank[caption.split] < last_split[content],
        )
        ids.add(caption.sample_id)
        pairs.add(pair)


def manifest_of(
    root: Path, annotations: Iterable[str], images: Mapping[str, DecodedImage]
) -> dict[str, Any]:
    """Hashes of the annotation files below `root` and of every image that exists.

    Returns:
        data_hash (sha256 over the sorted paths and hashes), count, bytes, and files.
    """
    files = {name: file_sha256(root / name) for name in annotations}
    size = sum((root / name).stat().st_size for name in files)
    for name, image in images.items():
        if image.sha256:
            files[name] = image.sha256
            size += image.bytes
    files = dict(sorted(files.items()))
    listing = "".join(f"{sha256}  {name}\n" for name, sha256 in files.items())
    return {
        "data_hash": hashlib.sha256(listing.encode()).hexdigest(),
        "count": len(files),
        "bytes": size,
        "files": files,
    }


def _downloads(splits: Mapping[str, Any], unparseable: list[Rejected]) -> dict[str, float]:
    """How many of a source's images were downloaded, by its metadata."""
    records = sum(split["records"] for split in splits.values())
    failed = sum(entry.rule == NOT_DOWNLOADED for entry in unparseable)
    share = 1 - failed / records if records else 0.0
    if failed:
        log.warning(
            "%d of %d images failed to download: %.1f%% exist", failed, records, 100 * share
        )
    return {"failed": failed, "share": share}
