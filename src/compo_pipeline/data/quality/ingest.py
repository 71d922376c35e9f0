"""Ingest: from the records of a source to caption rows, facts, a report and a manifest.

Rows that are held out of training, where a source has no held-out split of its own, are of images
that a sample leaves (split `held_out`), or else are taken from the rows that would train (split
`carved`). All rows of an image leave together.
"""

from __future__ import annotations

import hashlib
import heapq
import logging
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import PIL
from numpy.typing import NDArray

from compo_pipeline.core import sentences as language
from compo_pipeline.core.files import size_and_time
from compo_pipeline.core.hashing import file_hash, hash_of
from compo_pipeline.core.progress import Meter
from compo_pipeline.core.records import Caption, Fact, Rejected, schema
from compo_pipeline.core.seeding import digest
from compo_pipeline.core.stores import KeyValueStore
from compo_pipeline.core.table_files import LOCAL, PART, PrepareSettings, map_partitions
from compo_pipeline.core.tables import CARVED, HELD_OUT, Table, codes, grouped
from compo_pipeline.data.images import decoding
from compo_pipeline.data.images.decoding import DecodedImage, ImageError, Limits
from compo_pipeline.data.quality.caption_form import (
    FORMS,
    count_forms,
    distinct_texts,
    first_sentences,
    plain,
)
from compo_pipeline.data.quality.quarantine import most_frequent
from compo_pipeline.data.quality.settings import IngestSettings, SentenceSettings
from compo_pipeline.data.readers.record import NOT_BAD, RawCaption, SourceError
from compo_pipeline.data.settings import SampleSettings

_AT_ONCE = 50_000  # images that are measured together; their measurements are in memory
_IMAGES_PER_TASK = 64
# Each caption of an image is read once per row, and those rows are close together.
_CACHED_TEXTS = 50_000
_USED, _SHORT, _LONG = "used", "too_few_words", "too_many_words"
_SHOWN = 20  # examples of cleaned captions in the report
_SHARE = 10  # at most one training image in so many is carved

log = logging.getLogger(__name__)


class Ingested(NamedTuple):
    """Results of ingest: caption rows, measurements, unparseable records, report and manifest."""

    captions: Table[Caption]
    facts: Table[Fact]
    unparseable: list[Rejected]
    report: dict[str, Any]
    manifest: dict[str, Any]


class Replacement(Protocol):
    """Interface of captions that replace the captions of a source, such as recaptions."""

    fingerprint: str
    """Hash of the replacing captions, which becomes part of the data's hash."""

    def replaced(self, records: Iterable[RawCaption | Rejected]) -> Iterator[RawCaption | Rejected]:
        """Yield the records with replaced captions, and reject a record that has no replacement."""

    def report(self) -> dict[str, int]:
        """Numbers of replaced records, for the ingest report."""


def ingest(
    records: Mapping[str, Iterable[RawCaption | Rejected]],
    source: Mapping[str, Any],
    settings: IngestSettings,
    samples: Mapping[str, SampleSettings],
    trains: str,
    engine: PrepareSettings = LOCAL,
    held_out: int = 0,
    captions: Replacement | None = None,
) -> Ingested:
    """Sample the records of all sources, clean their captions and measure their images.

    Images of equal bytes in several sources have one `image_id`, so that a batch shows one of them
    and retrieval asks for any. Rows and measurements are in unnamed files beside the journal until
    they are saved.

    Args:
        records: records that the readers yield, by source. They are read twice if rows are held out
            of a sample.
        source: the result of `compo_pipeline.data.readers.locate`.
        settings: settings of ingest.
        samples: samples of records to use, by source.
        trains: the split that rows are carved out of.
        engine: measures images.
        held_out: images whose rows do not train. An equal share of each source comes from outside
            of the samples, in whole images; the rest is carved out of the training rows.
        captions: captions that replace those of the records. None keeps the records'.
    """
    spare = held_out_per_source(held_out, len(records))
    chosen = {name: used_records(own, samples[name], spare) for name, own in records.items()}
    sampled = {name: found for name, (_, found) in chosen.items() if found is not None}
    used = chain.from_iterable(own for own, _ in chosen.values())
    preparation = Preparation(settings.sentences)
    root, splits = Path(source["root"]), source["splits"]
    unparseable: list[Rejected] = []
    words = array("i")
    if captions is not None:
        used = chain(captions.replaced(used))
    folder = settings.journal and settings.journal.parent
    prepared = _caption_rows(used, source.get("format", ""), preparation, words, unparseable)
    rows = Table.spilled(prepared, Caption, folder)
    _require_rows(rows, splits, unparseable)
    paths = (path.as_py() for path in rows.column("image").unique())
    measured = Table.spilled(measure(root, paths, settings, engine), DecodedImage, folder)
    shown = measured.take(rows.codes("image"))
    rows = rows.with_columns(width=shown.column("width"), height=shown.column("height"))
    if held_out:
        rows = carve(rows, measured, trains, held_out)
    facts = facts_of(rows, words, measured, [HELD_OUT, *splits, CARVED])
    errors = Counter(
        error.partition(":")[0] for error in measured.column("error").to_pylist() if error
    )
    recaptions = None if captions is None else captions.report()
    left = {
        "data.sample.rows": sum(each["left_out"] for each in sampled.values()),
        "recaption.captioner": (recaptions or {}).get("merged", 0),
    }
    report = {
        "records": _record_counts(rows, unparseable, left),
        "rows": len(rows),
        "rows_by_split": _rows_by(rows, "split"),
        "unparseable": sum(entry.rule not in NOT_BAD for entry in unparseable),
        "images": len(measured),
        "images_unreadable": dict(sorted(errors.items())),
        "sample": (sampled if len(records) > 1 else next(iter(sampled.values()), None)) or None,
        "recaptions": recaptions,
        "distinct_texts": distinct_texts(rows),
        **preparation.report(),
    }
    if len(records) > 1:
        rows, shared = _with_shared_images(rows, facts)
        report |= {"rows_by_source": _rows_by(rows, "source"), "images_of_several_sources": shared}
        for names, count in shared.items():
            log.warning("%d images are the same in the sources %s.", count, names)
    fingerprint = "" if captions is None else captions.fingerprint
    manifest = manifest_of(root, chain.from_iterable(splits.values()), measured, fingerprint)
    return Ingested(rows, facts, unparseable, report, manifest)


def _rows_by(rows: Table[Caption], column: str) -> dict[str, int]:
    """Numbers of rows by the value of a column."""
    counts = rows.column(column).value_counts().to_pylist()
    return {each["values"]: each["counts"] for each in counts}


def _with_shared_images(
    rows: Table[Caption], facts: Table[Fact]
) -> tuple[Table[Caption], dict[str, int]]:
    """Rows with one `image_id` for equal images of several sources, and counts of such images.

    The id is that of the image's first row; the counts are by the names of the sources.
    """
    import pandas as pd
    import pyarrow as pa

    columns = {"content": codes(facts.column("image_hash")), "source": rows.codes("source")}
    frame = pd.DataFrame(columns)[np.asarray(facts.column("decode_error").is_null())]
    shared = frame[frame.groupby("content")["source"].transform("nunique") > 1]
    first = shared.index.to_series().groupby(shared["content"]).transform("first")
    places = np.arange(len(rows))
    places[first.index] = first
    names = rows.column("source").unique().to_pylist()
    found = Counter(
        ", ".join(names[source] for source in sorted({*own}))
        for _, own in shared.groupby("content")["source"]
    )
    return rows.with_columns(image_id=rows.column("image_id").take(pa.array(places))), dict(found)


def _require_rows(
    rows: Table[Caption], splits: Iterable[str], unparseable: Sequence[Rejected]
) -> None:
    """Raise an error for a split without a usable record, with the most frequent reason.

    Records that cannot be used are of the first split of their file.

    Raises:
        SourceError: there is one.
    """
    there = rows.column("split").unique().to_pylist()
    for split in (each for each in splits if each not in there):
        own = [each for each in unparseable if f"/{split}-" in f"/{each.sample_id}"]
        reasons = [most_frequent(own or unparseable)] if unparseable else []
        if not own:
            reasons.append(
                f"where there are none, raise data.shares.{split}, or name the column that says "
                "each record's split (train, val, test, validation, ...) in data.columns.split; "
                f"data.splits.{split}=null leaves the split out"
            )
        raise SourceError(
            f"data.splits.{split}: none of its records can be used; {'; '.join(reasons)}"
        )


def _record_counts(
    rows: Table[Caption], unparseable: Sequence[Rejected], left_out: Mapping[str, int]
) -> dict[str, Any]:
    """Numbers of the source's records, of those used, rejected by rule, and left out by setting."""
    rejected = Counter(each.rule for each in unparseable)
    left = sum(left_out.values())
    total = len(rows) + len(unparseable) + left
    reasons = ", ".join(f"{name} {n}" for name, n in (rejected | Counter(left_out)).items() if n)
    text = "Records: %d in the source = %d used + %d rejected + %d left out%s"
    log.info(text, total, len(rows), len(unparseable), left, reasons and f" ({reasons})")
    return {
        "source": total,
        "used": len(rows),
        "rejected": dict(rejected),
        "left_out": {name: count for name, count in left_out.items() if count},
    }


def _caption_rows(
    records: Iterable[RawCaption | Rejected],
    source: str,
    preparation: Preparation,
    words: array[int],
    unparseable: list[Rejected],
) -> Iterator[Caption]:
    """Yield caption rows without image sizes, and append rejected records to `unparseable`.

    `source` is that of records which name none.
    """
    for record in records:
        if isinstance(record, Rejected):
            unparseable.append(record)
            continue
        counted, lengths = preparation.sentences(record)
        words.extend((len(counted), min(lengths, default=0), max(lengths, default=0)))
        yield Caption(
            sample_id=record.sample_id,
            image_id=record.image_id,
            image=record.image,
            width=0,  # until the image is measured
            height=0,
            sentences=tuple(sentence for sentence, _ in counted),
            source=record.source or source,
            split=record.split,
        )


def measure(
    root: Path, paths: Iterable[str], settings: IngestSettings, engine: PrepareSettings = LOCAL
) -> Iterator[DecodedImage]:
    """Hash and decode images, each distinct path once, or read stored measurements.

    With `settings.journal`, files of unchanged size and time are not read again, unless the
    decoder has changed. Yields the measurements in the order of the paths.
    """
    store = KeyValueStore(settings.journal, DecodedImage) if settings.journal else None
    depends = (root.resolve(), settings.limits, f"{decoding.DECODING} Pillow {PIL.__version__}")
    inspect_all = partial(_inspect_all, root, settings.limits)
    for some in grouped(paths, _AT_ONCE):
        versions = {path: _version(root, path, settings.limits) for path in some}
        keys = {path: hash_of(path, version, *depends) for path, version in versions.items()}
        stored = store.get(keys.values()) if store else {}
        found = {image.path: image for image in stored.values()}
        if found:
            log.info("%d of %d images are known from %s", len(found), len(some), settings.journal)
        missing = [path for path in some if path not in found]
        with Meter(len(missing), "measuring images") as meter:
            groups = grouped(missing, _IMAGES_PER_TASK)
            for group in map_partitions(inspect_all, groups, engine, threads=True):
                if store:
                    store.put({keys[image.path]: image for image in group if image.sha256})
                for image in group:
                    found[image.path] = image
                    meter.advance()
        yield from (found[path] for path in some)


def _version(root: Path, path: str, limits: Limits) -> tuple[int, int] | None:
    """Size and time of an image's file or of its archive, or None if it is missing."""
    try:
        return size_and_time(decoding.locate(root, path, limits))
    except (ImageError, OSError):
        return None


def _inspect_all(root: Path, limits: Limits, paths: list[str]) -> list[DecodedImage]:
    """Hash and decode each image of a group.

    An unreadable one has the error in its result.
    """
    return [decoding.inspect(root, path, limits) for path in paths]


Counted = tuple[tuple[str, int], ...]
"""Sentences with their numbers of words."""


class Preparation:
    """Cleans captions and splits them into sentences, with counts for the ingest report.

    Only the rows' own captions count, so each caption of a source counts once.
    """

    def __init__(self, settings: SentenceSettings) -> None:
        self._settings = settings
        self._counts, self._openings = Counter[str](), Counter[str]()
        self._examples: list[dict[str, str]] = []
        self._forms = {name: {"captions": 0, "examples": []} for name in FORMS}

    def sentences(self, raw: RawCaption) -> tuple[Counted, list[int]]:
        """Distinct usable sentences of a row, and their numbers of words.

        If the row's own caption has no usable sentence, there is none, and the numbers are those of
        all its sentences.
        """
        texts, whole = [plain(text) for text in raw.own], self._settings.whole
        if not whole:
            texts[0], opening = language.clean(texts[0])
            self._openings.update([] if opening is None else [opening])
            if opening is not None and len(self._examples) < _SHOWN:
                example = {"sample_id": raw.sample_id, "before": raw.own[0], "after": texts[0]}
                self._examples.append(example)
        count_forms(" ".join(raw.own), " ".join(texts), self._forms)
        own = [counted for text in texts for counted in _sentences_with_lengths(text, whole)]
        fit = [counted for counted in own if self._judge(counted) == _USED]
        self._counts.update(["captions", *map(self._judge, own)])
        if not fit:
            self._counts["without"] += 1
            return (), [words for _, words in own]
        for text in raw.further:
            parts = _sentences_with_lengths(plain(text), whole)
            fit += [counted for counted in parts if self._judge(counted) == _USED]
        distinct = tuple(dict.fromkeys(fit))
        return distinct, [words for _, words in distinct]

    def report(self) -> dict[str, Any]:
        """Counts of cleaned captions and used sentences so far, with examples."""
        counts, cleaned = self._counts, self._openings.total()
        return {
            "captions": counts["captions"],
            "captions_cleaned": cleaned,
            "share_cleaned": cleaned / max(1, counts["captions"]),
            "openings": dict(self._openings.most_common()),
            "examples": self._examples,
            "sentences_used": counts[_USED],
            "sentences_dropped": {reason: counts[reason] for reason in (_SHORT, _LONG)},
            "captions_without_a_sentence": counts["without"],
            "forms": self._forms,
        }

    def _judge(self, counted: tuple[str, int]) -> str:
        """Whether a sentence is used, or why not."""
        _, words = counted
        if words < self._settings.least_words:
            return _SHORT
        return _LONG if words > self._settings.most_words else _USED


@lru_cache(_CACHED_TEXTS)
def _sentences_with_lengths(text: str, whole: bool) -> Counted:
    """Sentences of a plain text, each with its number of words."""
    sentences = [text] if whole else language.split(text)
    return tuple((sentence, language.word_count(sentence)) for sentence in sentences)


def held_out_per_source(held_out: int, sources: int) -> int:
    """Number of held-out images per source: an equal share of all, rounded up."""
    return -(-held_out // sources)


def used_records(
    records: Iterable[RawCaption | Rejected], sample: SampleSettings, held_out: int
) -> tuple[Iterable[RawCaption | Rejected], dict[str, Any] | None]:
    """Sampled and held-out records of a source, and the sample's entry of the ingest report.

    Args:
        records: all records of the source, read twice where rows are held out of a sample.
        sample: sample of records to use.
        held_out: images whose rows are held out, from outside of the sample.
    """
    if sample.rows is None:
        return records, None
    drawn, report = draw_sample(records, sample)
    left = surplus(records, drawn, sample.split, held_out) if held_out else []
    report["left_out"] = report["records"] - report["taken"] - len(left)
    return [*drawn, *left], report


def draw_sample(
    records: Iterable[RawCaption | Rejected], settings: SampleSettings
) -> tuple[list[RawCaption | Rejected], dict[str, Any]]:
    """Seeded random sample of one split's records, with all records of other splits.

    The hash of a record's id is its rank, so neither the order of the files nor added records
    change which of two others is preferred.

    Returns:
        The records in their order, and the entry of the ingest report.
    """
    assert settings.rows is not None
    passed: list[tuple[int, RawCaption | Rejected]] = []
    seen = count()

    def ranked() -> Iterator[tuple[int, int, RawCaption]]:
        for place, record in enumerate(records):
            if isinstance(record, Rejected) or record.split != settings.split:
                passed.append((place, record))
            else:
                next(seen)
                yield digest(settings.seed, record.sample_id), place, record

    drawn = heapq.nsmallest(settings.rows, ranked())
    passed += [(place, record) for _, place, record in drawn]
    report = {"split": settings.split, "seed": settings.seed}
    report |= {"records": next(seen), "taken": len(drawn)}
    return [record for _, record in sorted(passed, key=lambda entry: entry[0])], report


def surplus(
    records: Iterable[RawCaption | Rejected],
    sample: Iterable[RawCaption | Rejected],
    split: str,
    images: int,
) -> list[RawCaption]:
    """Records of images that a sample leaves out, moved to the split `held_out`.

    The hash of an image's path draws among them, so no other image changes which of two is
    preferred.

    Args:
        records: records of the source, read twice.
        sample: records that were drawn, and those of other splits.
        split: the sampled one.
        images: largest number of images.
    """
    taken = {digest(record.image) for record in sample if isinstance(record, RawCaption)}

    def spare() -> Iterator[tuple[int, RawCaption]]:
        for record in records:
            if isinstance(record, Rejected) or record.split != split:
                continue
            if digest(record.image) not in taken:
                yield digest(HELD_OUT, record.image), record

    ranks = np.unique(np.fromiter((rank for rank, _ in spare()), np.uint64))
    chosen, found = set(ranks[:images].tolist()), dict[int, list[RawCaption]]()
    for rank, record in spare():
        if rank in chosen:
            found.setdefault(rank, []).append(replace(record, split=HELD_OUT))
    return [record for own in found.values() for record in own]


def carve(
    rows: Table[Caption], images: Table[DecodedImage], split: str, wanted: int
) -> Table[Caption]:
    """Move the rows of some training images to the split `carved`, which is not trained on.

    The hash of an image's content draws it. Images that a further split has too are left alone:
    they do not train. At most a tenth of the training images is taken.

    Args:
        rows: rows of all splits. Those of `held_out` count as wanted images.
        images: measurements, in the order in which the rows name the images first.
        split: split that trains.
        wanted: number of held-out images in all.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    content = content_of(rows, images)
    names = rows.column("split")
    trains, spare = (np.asarray(pc.equal(names, name), bool) for name in (split, HELD_OUT))
    whole = np.asarray(pc.is_null(images.column("error")))[rows.codes("image")]
    missing = wanted - len(np.unique(content[spare & whole]))
    if missing <= 0:
        return rows
    elsewhere = np.unique(content[~trains])
    distinct, first = np.unique(content, return_index=True)
    fit = (trains & whole)[first] & ~np.isin(distinct, elsewhere)
    hashes = images.column("sha256").take(pa.array(rows.codes("image")[first[fit]])).to_pylist()
    count = min(missing, len(hashes) // _SHARE)
    if count < missing:
        log.warning(
            "foils.carve: %d images are to be held out, but no more than a tenth of %d training "
            "images is carved: %d are; lower foils.carve, or add data.",
            wanted,
            len(hashes),
            count,
        )
    order = np.argsort([digest(CARVED, each) for each in hashes], kind="stable")
    chosen = np.isin(content, distinct[fit][order[:count]])
    moved = pc.if_else(pa.array(chosen), CARVED, names.combine_chunks())
    return rows.with_columns(split=pa.chunked_array([moved]))


def content_of(rows: Table[Caption], images: Table[DecodedImage]) -> NDArray[np.int64]:
    """Integer id of each row's image content [n], equal for images with equal bytes.

    Images that do not decode equal only themselves.
    """
    import pyarrow.compute as pc

    errors = images.column("error")
    same = pc.if_else(pc.is_null(errors), images.column("sha256"), images.column("path"))
    return codes(same)[rows.codes("image")].astype(np.int64)


def facts_of(
    captions: Table[Caption],
    words: Sequence[int],
    images: Table[DecodedImage],
    splits: Sequence[str],
) -> Table[Fact]:
    """Table of measurements (`Fact`), one per caption row, with duplicates and leaks marked.

    Of rows that repeat each other within a split the first is clean. An image in several splits
    belongs to the last of them: held-out data keep their images, and the earlier rows leak.

    Args:
        captions: the rows.
        words: three numbers a row: of its sentences, and of the words of the shortest and of the
            longest one, or, without a fit sentence, of those of its own caption.
        images: measurements, in the order in which the rows name the images first.
        splits: all splits, the held-out ones last.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    image = captions.codes("image")
    shown = images.take(image)
    content = content_of(captions, images)
    split_names = captions.column("split")
    rank = np.asarray(pc.index_in(split_names, value_set=pa.array(splits)), dtype=np.int64)
    last = np.zeros(len(images), np.int64)
    np.maximum.at(last, content, rank)
    texts = codes(first_sentences(captions))
    pairs = (content * (texts.max(initial=0) + 1) + texts) * len(splits) + rank
    numbers = np.array(words, np.int64).reshape(-1, 3).T
    columns = {
        "row": np.arange(len(captions)),
        "sample_id": captions.column("sample_id"),
        "image": captions.column("image"),
        "split": split_names,
        "image_hash": shown.column("sha256"),
        "decode_error": shown.column("error"),
        "width": shown.column("width"),
        "height": shown.column("height"),
        **dict(zip(("sentences", "least_words", "most_words"), numbers, strict=True)),
        "repeats_id": _is_repeated(captions.codes("sample_id")),
        "repeats_pair": _is_repeated(pairs),
        "leaks": rank < last[content],
    }
    return Table(Fact, pa.table(columns, schema=schema(Fact)))


def _is_repeated(values: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
    """Mask [n] of the values that also occur at an earlier index."""
    repeats = np.ones(len(values), bool)
    repeats[np.unique(values, return_index=True)[1]] = False
    return repeats


def manifest_of(
    root: Path, annotations: Iterable[str], images: Table[DecodedImage], captions: str = ""
) -> dict[str, Any]:
    """Manifest of the data: a hash of all annotation files and images, with their counts.

    Args:
        root: folder of the data.
        annotations: files below it.
        images: measurements of the images.
        captions: hash of captions that are in no file of the source; empty where there are none.

    Returns:
        data_hash (sha256 over the sorted paths and hashes), count, bytes, and the annotation
        files; the hashes of the images are in `facts`.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    files = {name: file_hash(root / name) for name in sorted(annotations)}
    there = images.where(np.asarray(pc.not_equal(images.column("sha256"), ""), dtype=bool))
    size = sum((root / name).stat().st_size for name in files)
    size += pc.sum(there.column("bytes")).as_py() or 0
    listed = pa.schema([("name", pa.string()), ("sha256", pa.string())])
    own = pa.table([list(files), list(files.values())], schema=listed)
    shown = pa.table([there.column("path"), there.column("sha256")], schema=listed)
    every = pa.concat_tables([own, shown]).sort_by("name")
    listing = hashlib.sha256()
    for batch in every.to_batches(max_chunksize=PART):
        for name, sha256 in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            listing.update(f"{sha256}  {name}\n".encode())
    listing.update(captions.encode())
    return {"data_hash": listing.hexdigest(), "count": len(every), "bytes": size, "files": files}
