"""Scores that travel with a run: the artefacts scores/<stamp>/<weights>.parquet.

Beside them scores/<stamp>/stamp.json says what the stamp stands for.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from compo_pipeline.configuration import parse
from compo_pipeline.evaluation.benchmarks import Subtask
from compo_pipeline.evaluation.comparison import BASE
from compo_pipeline.evaluation.contamination import Overlap
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.models.identity import read_record
from compo_pipeline.records import Score, from_table, to_table
from compo_pipeline.registry import lineage
from compo_pipeline.registry import stamp as stamps
from compo_pipeline.registry.record import Record
from compo_pipeline.registry.stamp import Stamp

FOLDER = "scores"
# Kept by the evaluation itself.
COMPARISON = "comparison.json"
_STAMP = "stamp.json"
_DIGITS = 16

log = logging.getLogger(__name__)


def keep(record: Record, stamp: Stamp, by_weights: Mapping[str, Iterable[Score]]) -> None:
    """Keep the scores of models with a run.

    Args:
        record: the run.
        stamp: of all the scores.
        by_weights: rows by the fingerprint of the model that they are of.
    """
    import pyarrow.parquet as pq

    with tempfile.TemporaryDirectory() as temporary:
        for weights, scores in by_weights.items():
            file = Path(temporary) / f"{weights[:_DIGITS]}.parquet"
            pq.write_table(to_table(scores, Score), file)
        note = json.dumps(asdict(stamp), indent=2)
        (Path(temporary) / _STAMP).write_text(note, encoding="utf-8")
        record.artefact(Path(temporary), f"{FOLDER}/{stamp.id}")


def keep_evaluation(
    record: Record,
    scores: Sequence[Score],
    checkpoint: Path,
    fine_tuned: str,
    subtasks: Sequence[Subtask],
    root: str,
    settings: EvaluationSettings,
) -> None:
    """Keep what an evaluation found of a checkpoint and of the base that it was trained from.

    Args:
        record: the run.
        scores: of all its models.
        checkpoint: as training left it; the fingerprints of both models are noted beside it.
        fine_tuned: the name that the checkpoint's scores bear.
        subtasks: what was scored.
        root: where the benchmarks lie.
        settings: how.
    """
    noted = read_record(checkpoint)
    weights = {fine_tuned: noted.get("fingerprint"), BASE: base_fingerprint(noted)}
    known = {mark: name for name, mark in weights.items() if mark}
    by_weights = {mark: [s for s in scores if s.model == name] for mark, name in known.items()}
    stamp = stamps.make(subtasks, settings)
    keep(record, stamp, by_weights)
    lineage.questions(record, stamp, root)


def base_fingerprint(noted: Mapping[str, Any]) -> str | None:
    """The fingerprint of the base, from what training noted beside a checkpoint (compo.json)."""
    mark = noted.get("training", {}).get("fingerprint", {}).get("model")
    return None if mark is None else str(mark)


def find(run_id: str, stamp: Stamp, weights: str) -> list[Score] | None:
    """The kept scores of a model; None where there are none under this stamp."""
    import mlflow
    import pyarrow.parquet as pq

    client = mlflow.MlflowClient()
    wanted = f"{FOLDER}/{stamp.id}/{weights[:_DIGITS]}.parquet"
    if wanted not in {file.path for file in client.list_artifacts(run_id, f"{FOLDER}/{stamp.id}")}:
        return None
    with tempfile.TemporaryDirectory() as temporary:
        path = client.download_artifacts(run_id, wanted, temporary)
        try:
            return list(from_table(pq.read_table(path), Score))
        except ValueError as error:
            log.warning("The scores %s of the run %s cannot be read: %s", wanted, run_id, error)
            return None


def overlaps(run_id: str) -> tuple[Overlap, ...]:
    """What a run's training data share with benchmarks, where its evaluation has looked."""
    import mlflow

    client = mlflow.MlflowClient()
    if COMPARISON not in {file.path for file in client.list_artifacts(run_id)}:
        return ()
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(client.download_artifacts(run_id, COMPARISON, temporary))
        content = json.loads(path.read_text(encoding="utf-8"))
    return tuple(parse(Overlap, each, f"{COMPARISON}: overlaps") for each in content["overlaps"])


def why_not(run_id: str, stamp: Stamp) -> str:
    """Why a run has no scores under a stamp: what differs from those that it has."""
    import mlflow

    client = mlflow.MlflowClient()
    found = []
    with tempfile.TemporaryDirectory() as temporary:
        for folder in client.list_artifacts(run_id, FOLDER):
            if folder.path == f"{FOLDER}/{stamp.id}":
                continue
            path = client.download_artifacts(run_id, f"{folder.path}/{_STAMP}", temporary)
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            found.append(stamp.differences(parse(Stamp, content, _STAMP)))
    if not found:
        return "no scores were kept with its run"
    nearest = min(found, key=len)
    return f"its scores were made with other {', '.join(nearest)}"
