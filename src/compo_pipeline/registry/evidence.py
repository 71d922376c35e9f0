"""Evidence of a version: what promotion reads beside its weights, a file of its exported folder.

The file has the digests of the scores that are stored with the version's run, and what the
benchmarks share with its training data. It is hashed and signed with the version's other files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from compo_pipeline.configuration import parse
from compo_pipeline.evaluation.benchmarks.items import Subtask, sets_of
from compo_pipeline.evaluation.contamination import Overlap, set_fingerprint
from compo_pipeline.storage import write_plain_json
from compo_pipeline.untrusted import read_json

EVIDENCE_FILE = "evidence.json"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was measured of a version.

    Attributes:
        scores: sha256 of each table of scores by its path in the run's artefacts.
        overlaps: of the benchmarks with the training data, as the last evaluation measured them.
    """

    scores: dict[str, str]
    overlaps: tuple[Overlap, ...]

    def overlaps_of(self, subtasks: Sequence[Subtask]) -> list[Overlap]:
        """Overlaps of those sets of subtasks that were measured with the same items and images."""
        measured = {overlap.items: overlap for overlap in self.overlaps}
        wanted = (set_fingerprint(own) for own in sets_of(subtasks).values())
        return [measured[items] for items in wanted if items in measured]


def write_evidence(export: Path, evidence: Evidence) -> Path:
    """Write the evidence into an exported folder, and return the file."""
    write_plain_json(export / EVIDENCE_FILE, asdict(evidence))
    return export / EVIDENCE_FILE


def read_evidence(export: Path) -> Evidence:
    """The evidence of an exported folder.

    Raises:
        ValueError: it is missing, cannot be read, or holds impossible numbers; names the file.
    """
    file = export / EVIDENCE_FILE
    if not file.is_file():
        raise ValueError(f"{EVIDENCE_FILE} is missing")
    evidence = parse(Evidence, read_json(file), EVIDENCE_FILE)
    for overlap in evidence.overlaps:
        for name, part, whole in (
            ("same_bytes", overlap.same_bytes, overlap.images),
            ("same_name", overlap.same_name, overlap.images),
            ("near", overlap.near or 0, overlap.images),
            ("same_caption", overlap.same_caption, overlap.captions),
        ):
            if not 0 <= part <= whole:
                raise ValueError(
                    f"{EVIDENCE_FILE}: {name} of {overlap.benchmark} {overlap.subtask} is {part}, "
                    f"expected 0 to {whole}"
                )
    return evidence
