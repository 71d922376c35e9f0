"""Evidence of a version: its measurements, in a folder of its exported folder.

    evidence/evidence.json      what was scored and how, labels, overlaps with the training data
    evidence/scores.parquet     `Score` rows of the version and of its base
    evidence/items.parquet      `ScoredItem` rows: slices of the benchmark items
    evidence/reference.parquet  embeddings of held-out captions, see `reference`
    evidence/words.parquet      words of the training captions, see `reference`

The files are hashed and signed with the version's other files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from compo_pipeline.core.files import write_json
from compo_pipeline.core.records import Score, ScoredItem, schema
from compo_pipeline.core.settings import parse
from compo_pipeline.core.tables import Row, Table, write_parquet
from compo_pipeline.core.untrusted import read_batches, read_json
from compo_pipeline.evaluation.comparison import BASE, FINE_TUNED, renamed
from compo_pipeline.evaluation.contamination import Overlap
from compo_pipeline.evaluation.evaluate import ScoresFingerprint

if TYPE_CHECKING:
    from compo_pipeline.evaluation.evaluate import Comparison

EVIDENCE_FOLDER = "evidence"
REFERENCE_FILE, WORDS_FILE = "reference.parquet", "words.parquet"
_RECORD_FILE, _SCORES_FILE, _ITEMS_FILE = "evidence.json", "scores.parquet", "items.parquet"
# Names of the models in the table of scores.
VERSION = "version"
MODELS = {FINE_TUNED: VERSION, BASE: BASE}
_GROUP = 10_000
_NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Evidence:
    """Record of how a version and its base were scored, and of overlaps with the training data.

    Attributes:
        version: fingerprint of the scored weights of the version.
        base: fingerprint of the weights of its base.
        scored: a fingerprint of each benchmark's scores.
        titles: labels of the benchmarks whose files are not the official ones.
        overlaps: overlaps of the benchmarks with the training data.
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


def write_evidence(
    export: Path,
    evidence: Evidence,
    scores: Mapping[str, Iterable[Score]],
    items: Iterable[ScoredItem],
) -> None:
    """Write a version's evidence record, score rows and benchmark items into its exported folder.

    Args:
        export: the folder.
        evidence: evidence to write.
        scores: scores of the version and of its base, by role (fine_tuned, base).
        items: items that were scored.
    """
    folder = export / EVIDENCE_FOLDER
    folder.mkdir(exist_ok=True)
    write_json(folder / _RECORD_FILE, asdict(evidence))
    rows = Table.joined([renamed(scores[role], name) for role, name in MODELS.items()])
    _write_table(rows, folder / _SCORES_FILE)
    _write_table(Table.of(items, ScoredItem), folder / _ITEMS_FILE)


def _write_table(rows: Table[Any], path: Path) -> None:
    """Write a table as a Parquet file."""
    columns = schema(cast(type, rows.row_type))
    # A file of fewer bytes than rows is refused when it is read.
    compression = {name: "none" if name == "item" else "snappy" for name in columns.names}
    plain = [name for name in columns.names if name != "item"]
    groups = (rows[start : start + _GROUP] for start in range(0, len(rows), _GROUP))
    tables = (group.to_arrow() for group in groups)
    write_parquet(path, tables, columns, compression=compression, use_dictionary=plain)


def read_evidence(export: Path) -> Evidence:
    """Read the evidence record (`evidence.json`) of an exported model's folder.

    Raises:
        ValueError: it cannot be read; names the file.
    """
    name = f"{EVIDENCE_FOLDER}/{_RECORD_FILE}"
    return parse(Evidence, read_json(export / name), name)


def read_tables(
    export: Path,
) -> tuple[Table[Score], Table[Score], dict[tuple[str, str, str], tuple[str, ...]]]:
    """Read the scores of the version and of its base from an exported model's folder, and slices.

    The slices map benchmark, subtask and item to names such as `attribute=red`.

    Raises:
        ValueError: a table cannot be read; names the file.
    """
    folder = export / EVIDENCE_FOLDER
    scores = _read_table(folder / _SCORES_FILE, Score)
    slices = {
        (item.benchmark, item.subtask, item.item): item.slices
        for item in _read_table(folder / _ITEMS_FILE, ScoredItem)
        if item.slices
    }
    return scores.having("model", [VERSION]), scores.having("model", [BASE]), slices


def _read_table(path: Path, row_type: type[Row]) -> Table[Row]:
    """Read an untrusted table file."""
    columns = schema(cast(type, row_type))
    batches = read_batches(path, columns, ("correct", "skipped"))
    return Table(row_type, pa.Table.from_batches(batches, columns))
