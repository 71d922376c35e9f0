"""Scores that travel with a run: the artefacts scores/<stamp>/<weights>.parquet.

Beside them stamp.json says what the stamp stands for. overlaps/ says what the run's training shares
with each subtask that its evaluation has looked at, whatever else was asked.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

from compo_pipeline.configuration import parse
from compo_pipeline.evaluation.benchmarks import Subtask
from compo_pipeline.evaluation.comparison import BASE, FINE_TUNED
from compo_pipeline.evaluation.contamination import Overlap
from compo_pipeline.evaluation.evaluate import Comparison
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.records import Score, from_table, to_table
from compo_pipeline.registry import lineage
from compo_pipeline.registry import stamp as stamps
from compo_pipeline.registry.record import Record
from compo_pipeline.registry.stamp import Stamp

_SCORES, _OVERLAPS = "scores", "overlaps"
FOLDERS = (_SCORES, _OVERLAPS)
_STAMP = "stamp.json"
# By what was compared: a later, shorter look leaves an earlier one's findings.
_LOOKS = {False: "exact", True: "near"}
_DIGITS = 16
Kept = TypeVar("Kept", Overlap, Stamp)

log = logging.getLogger(__name__)


def keep(record: Record, stamp: Stamp, by_weights: Mapping[str, Iterable[Score]]) -> None:
    """Keep the scores of models with a run.

    Args:
        record: the run.
        stamp: of all the scores.
        by_weights: rows by the fingerprint of the model that they are of.
    """
    import pyarrow.parquet as pq

    # First, so that no kill leaves scores of which nobody knows what they are.
    record.document(asdict(stamp), f"{_SCORES}/{stamp.id}/{_STAMP}")
    with tempfile.TemporaryDirectory() as temporary:
        for weights, scores in by_weights.items():
            file = Path(temporary) / f"{weights[:_DIGITS]}.parquet"
            pq.write_table(to_table(scores, Score), file)
        record.artefact(Path(temporary), f"{_SCORES}/{stamp.id}")


def keep_evaluation(
    record: Record,
    scores: Sequence[Score],
    comparison: Comparison,
    subtasks: Sequence[Subtask],
    root: str | None,
    settings: EvaluationSettings,
) -> None:
    """Keep what an evaluation found of a fine-tuned model and of its base.

    Args:
        record: the run.
        scores: of all its models.
        comparison: of the models; says which weights were scored.
        subtasks: what was scored.
        root: where the benchmarks lie; None where the dataset's own captions alone are asked.
        settings: how.
    """
    by_weights = {
        comparison.fingerprints[role]: [s for s in scores if s.model == comparison.models[role]]
        for role in (BASE, FINE_TUNED)
    }
    # First, so that no kill leaves scores whose contamination seems unknown.
    digests = {(task.benchmark, task.name): stamps.of_subtask(task) for task in subtasks}
    for overlap in comparison.overlaps:
        digest = digests[overlap.benchmark, overlap.subtask]
        name = f"{digest}_{_LOOKS[settings.perceptual_hash]}.json"
        record.document(asdict(overlap), f"{_OVERLAPS}/{name}")
    stamp = stamps.make(subtasks, settings)
    keep(record, stamp, by_weights)
    lineage.questions(record, stamp, root)


def find(run_id: str, stamp: Stamp, weights: str) -> list[Score] | None:
    """The kept scores of a model; None where there are none under this stamp."""
    import mlflow
    import pyarrow.parquet as pq

    client = mlflow.MlflowClient()
    wanted = f"{_SCORES}/{stamp.id}/{weights[:_DIGITS]}.parquet"
    if wanted not in _listed(run_id, f"{_SCORES}/{stamp.id}"):
        return None
    with tempfile.TemporaryDirectory() as temporary:
        path = client.download_artifacts(run_id, wanted, temporary)
        try:
            return list(from_table(pq.read_table(path), Score))
        except ValueError as error:
            log.warning("The scores %s of the run %s cannot be read: %s", wanted, run_id, error)
            return None


def overlaps(run_id: str, subtasks: Iterable[Subtask]) -> list[Overlap]:
    """What a run's training shares with subtasks, where somebody has looked.

    Of several looks at a subtask the one that found most counts.
    """
    there = _listed(run_id, _OVERLAPS)
    found = []
    for task in subtasks:
        names = {f"{_OVERLAPS}/{stamps.of_subtask(task)}_{look}.json" for look in _LOOKS.values()}
        known = (_read(Overlap, run_id, name) for name in names.intersection(there))
        looks = [overlap for overlap in known if overlap is not None]
        if looks:
            found.append(max(looks, key=lambda overlap: overlap.known_images))
    return found


def why_not(run_id: str, stamp: Stamp) -> str:
    """Why a run has no scores of some weights under a stamp: what differs from those it has."""
    folders = _listed(run_id, _SCORES)
    if not folders:
        return "no scores were kept with its run"
    if f"{_SCORES}/{stamp.id}" in folders:
        return "its run has scores of other weights alone (it is not registered in fp32?)"
    files = (file for folder in folders for file in _listed(run_id, folder))
    made = (_read(Stamp, run_id, file) for file in files if file.endswith(f"/{_STAMP}"))
    nearest = min((stamp.differences(each) for each in made if each), key=len, default=None)
    if nearest is None:
        return "nobody can read what its scores were made of"
    return f"its scores were made with other {', '.join(nearest)}"


def _listed(run_id: str, folder: str) -> list[str]:
    """Paths of what lies in a folder of a run's artefacts."""
    import mlflow

    return [file.path for file in mlflow.MlflowClient().list_artifacts(run_id, folder)]


def _read(row: type[Kept], run_id: str, name: str) -> Kept | None:
    """What a kept file holds; None where this version cannot read it."""
    import mlflow

    with tempfile.TemporaryDirectory() as temporary:
        path = Path(mlflow.MlflowClient().download_artifacts(run_id, name, temporary))
        try:
            return parse(row, json.loads(path.read_text(encoding="utf-8")), Path(name).name)
        except ValueError as error:
            log.warning("%s of the run %s cannot be read: %s", name, run_id, error)
            return None
