"""Evidence of a version: what was measured of it, in a folder of its exported folder.

    evidence/evidence.json      what was scored and how, labels, overlaps with the training data
    evidence/scores.parquet     `Score` rows of the version and of its base
    evidence/items.parquet      `ScoredItem` rows: shapes and slices of the benchmark items
    evidence/reference.parquet  embeddings of held-out captions, see `reference`
    evidence/words.parquet      words of the training captions, see `reference`

The files are hashed and signed with the version's other files.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

import pyarrow.parquet as pq

from compo_pipeline.benchmarks.averages import set_of
from compo_pipeline.configuration.settings import parse
from compo_pipeline.evaluation.comparison import BASE, FINE_TUNED
from compo_pipeline.evaluation.contamination import Overlap
from compo_pipeline.evaluation.fingerprints import ScoresFingerprint
from compo_pipeline.evaluation.verdicts import check_verdicts
from compo_pipeline.storage.files import write_plain_json
from compo_pipeline.storage.records import (
    PER_CLASS,
    Score,
    ScoredItem,
    decoded,
    schema,
    to_table,
)
from compo_pipeline.storage.tables import Row, grouped
from compo_pipeline.storage.untrusted import read_batches, read_json, shown

if TYPE_CHECKING:
    from compo_pipeline.evaluation.evaluate import Comparison

EVIDENCE_FOLDER = "evidence"
REFERENCE_FILE, WORDS_FILE = "reference.parquet", "words.parquet"
_RECORD_FILE, _SCORES_FILE, _ITEMS_FILE = "evidence.json", "scores.parquet", "items.parquet"
EVIDENCE_FILES = frozenset({_RECORD_FILE, _SCORES_FILE, _ITEMS_FILE, REFERENCE_FILE, WORDS_FILE})
# Names of the models in the table of scores.
VERSION = "version"
MODELS = {FINE_TUNED: VERSION, BASE: BASE}
_WRITTEN_AT_ONCE = 10_000
_NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Evidence:
    """Record of how a version and its base were scored, and of overlaps with the training data.

    Attributes:
        version: fingerprint of the scored weights of the version.
        base: fingerprint of the weights of its base.
        scored: a fingerprint of each benchmark's scores.
        titles: labels of the benchmarks whose files are not the official ones.
        overlaps: of the benchmarks with the training data.
        selecting: benchmarks whose items select weights or settings, and the YAML key by which they
            do; a version that was scored on such items is never promoted.
    """

    version: str
    base: str
    scored: tuple[ScoresFingerprint, ...]
    titles: dict[str, str]
    overlaps: tuple[Overlap, ...]
    selecting: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_comparison(
        cls, comparison: Comparison, selecting: Mapping[str, str] = _NONE
    ) -> Evidence:
        """Build the evidence from a comparison of a version's scores with its base model's."""
        return cls(
            version=comparison.models[FINE_TUNED].fingerprint,
            base=comparison.models[BASE].fingerprint,
            scored=comparison.scored,
            titles=comparison.titles,
            overlaps=comparison.overlaps,
            selecting=dict(selecting),
        )

    def differences(self, other: Evidence) -> list[str]:
        """Reasons why two versions' scores are not comparable: differing fields per benchmark."""
        ours, theirs = ({each.benchmark: each for each in own.scored} for own in (self, other))
        lines = [f"{name}: scored for one of them alone" for name in ours.keys() ^ theirs.keys()]
        for name in ours.keys() & theirs.keys():
            if fields := ours[name].differences(theirs[name]):
                lines.append(f"{name}: {', '.join(fields)}")
        return sorted(lines)


@dataclass(frozen=True, slots=True)
class EvidenceTables:
    """Score rows of a version and of its base model, and the slices of the benchmark items.

    `slices` maps benchmark, subtask and item to names such as `attribute=red`.
    """

    version: list[Score]
    base: list[Score]
    slices: dict[tuple[str, str, str], tuple[str, ...]]


def write_evidence(
    export: Path,
    evidence: Evidence,
    scores: Mapping[str, Iterable[Score]],
    items: Iterable[ScoredItem],
) -> None:
    """Write a version's evidence record, score rows and benchmark items into its exported folder.

    Args:
        export: the folder.
        evidence: what was measured.
        scores: of the version and of its base, by role (fine_tuned, base).
        items: that were scored.
    """
    folder = export / EVIDENCE_FOLDER
    folder.mkdir(exist_ok=True)
    write_plain_json(folder / _RECORD_FILE, asdict(evidence))
    renamed = (
        replace(score, model=name) for role, name in MODELS.items() for score in scores[role]
    )
    _write_table(renamed, Score, folder / _SCORES_FILE)
    _write_table(items, ScoredItem, folder / _ITEMS_FILE)


def _write_table(rows: Iterable[Row], row_type: type[Row], path: Path) -> None:
    """Write rows of one type as a Parquet file, in chunks."""
    columns = schema(cast(type, row_type))
    # A file of fewer bytes than rows is refused when it is read.
    compression = {name: "none" if name == "item" else "snappy" for name in columns.names}
    plain = [name for name in columns.names if name != "item"]
    with pq.ParquetWriter(path, columns, compression=compression, use_dictionary=plain) as writer:
        for chunk in grouped(rows, _WRITTEN_AT_ONCE):
            writer.write_table(to_table(chunk, row_type))


def read_evidence(export: Path) -> Evidence:
    """Read the evidence record (`evidence.json`) of an exported model's folder.

    Raises:
        ValueError: it cannot be read, or holds impossible numbers; names the file.
    """
    name = f"{EVIDENCE_FOLDER}/{_RECORD_FILE}"
    evidence = parse(Evidence, read_json(export / name), name)
    repeated = _first_repeated([each.benchmark for each in evidence.scored])
    if repeated is not None:
        raise ValueError(f"{name}: the benchmark {shown(repeated)} is named twice")
    repeated = _first_repeated([(each.benchmark, each.subtask) for each in evidence.overlaps])
    if repeated is not None:
        raise ValueError(f"{name}: the overlap of {shown(repeated)} is given twice")
    for overlap in evidence.overlaps:
        for count, part, whole in (
            ("same_bytes", overlap.same_bytes, overlap.images),
            ("same_name", overlap.same_name, overlap.images),
            ("near", overlap.near or 0, overlap.images),
            ("same_caption", overlap.same_caption, overlap.captions),
        ):
            if not 0 <= part <= whole:
                raise ValueError(
                    f"{name}: {count} of {overlap.benchmark} {overlap.subtask} is {part}, "
                    f"expected 0 to {whole}"
                )
    return evidence


def read_tables(export: Path, evidence: Evidence) -> EvidenceTables:
    """Read score rows and items of an exported folder, and check the rows' correct/wrong verdicts.

    Raises:
        ValueError: a table cannot be read, has rows of other benchmarks or items than the evidence,
            or a verdict that its similarities do not give, or an overlap does not fit the items;
            names the file.
    """
    folder = export / EVIDENCE_FOLDER
    items = list(_read_rows(folder / _ITEMS_FILE, ScoredItem))
    keys = [(item.benchmark, item.subtask, item.item) for item in items]
    repeated = _first_repeated(keys)
    if repeated is not None:
        raise ValueError(f"{EVIDENCE_FOLDER}/{_ITEMS_FILE}: {shown(repeated)} occurs twice")
    rows: dict[str, list[Score]] = {name: [] for name in MODELS.values()}
    place = f"{EVIDENCE_FOLDER}/{_SCORES_FILE}"
    for score in _read_rows(folder / _SCORES_FILE, Score):
        if score.model not in rows:
            raise ValueError(f"{place} has a model {shown(score.model)}, expected {sorted(rows)}")
        rows[score.model].append(score)
    wanted = {each.benchmark for each in evidence.scored}
    for name, own in rows.items():
        found = {score.benchmark for score in own}
        if found != wanted:
            raise ValueError(
                f"{place}: '{name}' is scored on {shown(sorted(found))}, {_RECORD_FILE} names "
                f"{shown(sorted(wanted))}"
            )
        try:
            check_verdicts(own, items)
        except ValueError as error:
            raise ValueError(f"{place}: '{name}': {error}") from None
    _check_overlap_sizes(evidence.overlaps, items, rows[VERSION])
    slices = {key: item.slices for key, item in zip(keys, items, strict=True) if item.slices}
    return EvidenceTables(rows[VERSION], rows[BASE], slices)


def _check_overlap_sizes(
    overlaps: Iterable[Overlap], items: Iterable[ScoredItem], rows: Iterable[Score]
) -> None:
    """Raise an error where an overlap counts images or captions that the items cannot have."""
    most: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for item in items:
        counts = most[item.benchmark, set_of(item.subtask)]
        counts["images"] += 1 + item.other_images
        counts["captions"] += item.positives + item.negatives
    # The texts of a classification are classes, which are no captions.
    top = ("top", PER_CLASS)
    classes = {(row.benchmark, set_of(row.subtask)) for row in rows if row.metric.startswith(top)}
    for each in overlaps:
        key = each.benchmark, each.subtask
        for what, found in (("images", each.images), ("captions", each.captions)):
            least = 0 if what == "captions" and key in classes else 1
            if key in most and not least <= found <= most[key][what]:
                raise ValueError(
                    f"{EVIDENCE_FOLDER}/{_RECORD_FILE}: the overlap of {' '.join(key)} counts "
                    f"{found} {what}, its items have {least} to {most[key][what]}"
                )


def _read_rows(path: Path, row_type: type[Row]) -> Iterator[Row]:
    """Yield the rows of a Parquet file from an untrusted source, after checks of its schema."""
    for batch in read_batches(path, schema(cast(type, row_type)), ("correct", "skipped")):
        yield from decoded(batch, row_type)


def _first_repeated(values: Sequence[object]) -> object | None:
    """The first value that occurs twice; None if there is none."""
    seen: set[object] = set()
    for value in values:
        if value in seen:
            return value
        seen.add(value)
    return None
