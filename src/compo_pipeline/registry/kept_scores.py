"""Scores that travel with a run: the artefacts scores/<stamp>/<weights>.parquet.

Beside them stamp.json says what the stamp stands for, and overlaps*.json what the run's training
shares with the questions, where its evaluation has looked.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

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

FOLDER = "scores"
_STAMP = "stamp.json"
# By what was compared: a later, shorter look leaves an earlier one's findings.
_OVERLAPS = {False: "overlaps.json", True: "overlaps_near.json"}
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

    # First, so that no kill leaves scores of which nobody knows what they are.
    record.document(asdict(stamp), f"{FOLDER}/{stamp.id}/{_STAMP}")
    with tempfile.TemporaryDirectory() as temporary:
        for weights, scores in by_weights.items():
            file = Path(temporary) / f"{weights[:_DIGITS]}.parquet"
            pq.write_table(to_table(scores, Score), file)
        record.artefact(Path(temporary), f"{FOLDER}/{stamp.id}")


def keep_evaluation(
    record: Record,
    scores: Sequence[Score],
    comparison: Comparison,
    subtasks: Sequence[Subtask],
    root: str,
    settings: EvaluationSettings,
) -> None:
    """Keep what an evaluation found of a fine-tuned model and of its base.

    Args:
        record: the run.
        scores: of all its models.
        comparison: of the models; says which weights were scored.
        subtasks: what was scored.
        root: where the benchmarks lie.
        settings: how.
    """
    by_weights = {
        comparison.fingerprints[role]: [s for s in scores if s.model == comparison.models[role]]
        for role in (BASE, FINE_TUNED)
    }
    stamp = stamps.make(subtasks, settings)
    keep(record, stamp, by_weights)
    name = _OVERLAPS[settings.perceptual_hash]
    found = [asdict(overlap) for overlap in comparison.overlaps]
    record.document({"overlaps": found}, f"{FOLDER}/{stamp.id}/{name}")
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


def overlaps(run_id: str, stamp: Stamp) -> list[Overlap]:
    """What a run's training shares with the questions of a stamp, where somebody has looked.

    Of several looks at a subtask the one that found most counts; how models were scored is no
    matter.
    """
    found: dict[tuple[str, str], Overlap] = {}
    for folder, made in _stamps(run_id):
        if made is None or not {"questions", "pictures"}.isdisjoint(stamp.differences(made)):
            continue
        for name in _OVERLAPS.values():
            content = _json(run_id, f"{folder}/{name}")
            for each in content["overlaps"] if content else ():
                overlap = parse(Overlap, each, name)
                known = found.setdefault((overlap.benchmark, overlap.subtask), overlap)
                if overlap.known_pictures > known.known_pictures:
                    found[overlap.benchmark, overlap.subtask] = overlap
    return list(found.values())


def why_not(run_id: str, stamp: Stamp) -> str:
    """Why a run has no scores under a stamp: what differs from those that it has."""
    made = [each for folder, each in _stamps(run_id) if folder != f"{FOLDER}/{stamp.id}"]
    if not made:
        return "no scores were kept with its run"
    nearest = min((stamp.differences(each) for each in made if each), key=len, default=None)
    if nearest is None:
        return "nobody can read what its scores were made of"
    return f"its scores were made with other {', '.join(nearest)}"


def _stamps(run_id: str) -> Iterator[tuple[str, Stamp | None]]:
    """Folders of kept scores with their stamps; None for one that this version cannot read."""
    import mlflow

    for folder in mlflow.MlflowClient().list_artifacts(run_id, FOLDER):
        try:
            yield folder.path, parse(Stamp, _json(run_id, f"{folder.path}/{_STAMP}"), _STAMP)
        except ValueError:
            yield folder.path, None


def _json(run_id: str, name: str) -> Any:
    """The content of a kept file, None where there is none."""
    import mlflow

    client = mlflow.MlflowClient()
    if name not in {file.path for file in client.list_artifacts(run_id, str(Path(name).parent))}:
        return None
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(client.download_artifacts(run_id, name, temporary))
        return json.loads(path.read_text(encoding="utf-8"))
