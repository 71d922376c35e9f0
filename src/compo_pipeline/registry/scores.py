"""Scores of models, stored with the run that trained one of them.

Artefacts of a run:

    scores/<fingerprint>/<weights>.parquet    scores of one model on one benchmark
    scores/<fingerprint>/<weights>.sha256     digest of that file
    scores/<fingerprint>/fingerprint.json     what the fingerprint covers
"""

from __future__ import annotations

import hashlib
import json
import logging
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import mlflow
import pyarrow.parquet as pq

from compo_pipeline.code_fingerprint import code_fingerprint
from compo_pipeline.compute import choose_device
from compo_pipeline.configuration import PlainError, parse
from compo_pipeline.evaluation import scoring
from compo_pipeline.evaluation.benchmarks.items import Subtask
from compo_pipeline.evaluation.comparison import BASE, FINE_TUNED
from compo_pipeline.evaluation.contamination import images_hash, items_hash
from compo_pipeline.evaluation.evaluate import Comparison
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.records import Score, from_table, to_table
from compo_pipeline.registry import tracking
from compo_pipeline.registry.run_log import RunLog
from compo_pipeline.storage import file_sha256
from compo_pipeline.untrusted import parse_json

# Folder of a run's artefacts.
SCORES = "scores"
_FINGERPRINT_FILE = "fingerprint.json"
_DIGITS = 16
_DIGEST = ".sha256"
_Row = TypeVar("_Row", Subtask, Score)

log = logging.getLogger(__name__)


class ScoresInvalid(PlainError, RuntimeError):
    """Stored scores were changed after they were computed."""


@dataclass(frozen=True, slots=True)
class ScoresFingerprint:
    """Hashes of everything that scores of a benchmark depend on, except weights and versions of
    libraries.

    Attributes:
        benchmark: its name.
        items: of all its items, as its adapter reads them, and how images are turned.
        images: of their images' bytes.
        code: of the code that scores.
        settings: precision of the towers and kind of device.
    """

    benchmark: str
    items: str
    images: str
    code: str
    settings: Mapping[str, str]

    @property
    def id(self) -> str:
        """Sixteen hexadecimal digits of all fields."""
        return _hash(json.dumps(asdict(self), sort_keys=True))

    def differences(self, other: ScoresFingerprint) -> list[str]:
        """Names of the fields that differ."""
        ours, theirs = asdict(self), asdict(other)
        return [name for name in ours if ours[name] != theirs[name]]


def scores_fingerprints(
    subtasks: Sequence[Subtask], settings: EvaluationSettings
) -> dict[str, ScoresFingerprint]:
    """Fingerprints of scores computed now, on this machine, with these settings, by benchmark."""
    kind = choose_device(settings.device, key="evaluation.device").type
    precision = {"image": settings.image_precision, "text": settings.text_precision}
    code = code_fingerprint(scoring.__name__)
    return {
        name: ScoresFingerprint(
            benchmark=name,
            items=items_hash(own),
            images=images_hash(own),
            code=code,
            settings={"device": kind, **precision},
        )
        for name, own in by_benchmark(subtasks).items()
    }


def by_benchmark(rows: Iterable[_Row]) -> dict[str, list[_Row]]:
    """Subtasks or scores of each benchmark, in their order."""
    found: dict[str, list[_Row]] = {}
    for row in rows:
        found.setdefault(row.benchmark, []).append(row)
    return found


def store_evaluation(
    run: RunLog,
    scores: Sequence[Score],
    comparison: Comparison,
    subtasks: Sequence[Subtask],
    root: str | None,
    settings: EvaluationSettings,
) -> None:
    """Store an evaluation's scores of the fine-tuned model and of its base with the run.

    Args:
        run: of the training.
        scores: of all models.
        comparison: of the models; has their fingerprints.
        subtasks: that were scored.
        root: folder of the benchmarks; None if only the dataset's own captions were scored.
        settings: of the evaluation.
    """
    by_weights = {
        comparison.fingerprints[role]: [s for s in scores if s.model == comparison.models[role]]
        for role in (BASE, FINE_TUNED)
    }
    scored = scores_fingerprints(subtasks, settings)
    store_scores(run, scored, by_weights)
    every = _hash(f"{[(each.items, each.images) for each in scored.values()]}")
    run.dataset("benchmarks", every, root, "evaluation")


def store_scores(
    run: RunLog,
    fingerprints: Mapping[str, ScoresFingerprint],
    by_weights: Mapping[str, Iterable[Score]],
) -> None:
    """Store the scores of models with a run.

    Args:
        run: of the training.
        fingerprints: of the scored benchmarks, by name.
        by_weights: scores on all these benchmarks, by the fingerprint of the model's weights.
    """
    own = {weights: by_benchmark(scores) for weights, scores in by_weights.items()}
    for name, fingerprint in fingerprints.items():
        folder = f"{SCORES}/{fingerprint.id}"
        # Before the scores: after a kill, no scores may lack it.
        run.document(asdict(fingerprint), f"{folder}/{_FINGERPRINT_FILE}")
        with tempfile.TemporaryDirectory() as temporary:
            for weights, scores in own.items():
                file = Path(temporary) / f"{weights[:_DIGITS]}.parquet"
                pq.write_table(to_table(scores.get(name, []), Score), file)
                file.with_suffix(_DIGEST).write_text(file_sha256(file), encoding="utf-8")
            run.artefact(Path(temporary), folder)


def digests(run_id: str) -> dict[str, str]:
    """sha256 of every table of scores that is stored with a run, by its path in the artefacts.

    Raises:
        ScoresInvalid: a table is not the one that was stored.
    """
    if tracking.find(run_id) is None:
        return {}
    names = [name for scored in _artefacts(run_id, SCORES) for name in _artefacts(run_id, scored)]
    with tempfile.TemporaryDirectory() as folder:
        return {
            name: _table(run_id, name, Path(folder))[1]
            for name in names
            if name.endswith(".parquet")
        }


def stored_scores(
    run_id: str | None,
    fingerprint: ScoresFingerprint,
    weights: str,
    evidence: Mapping[str, str],
    *,
    others: bool,
) -> list[Score] | None:
    """A run's stored scores of a model; None if there are none with this fingerprint that count.

    Args:
        run_id: of the run.
        fingerprint: of the scores.
        weights: fingerprint of the model's weights.
        evidence: digests of tables by their path, from a version's verified files; a table that is
            named there must have its digest.
        others: whether tables that the evidence does not name count.
    """
    folder = f"{SCORES}/{fingerprint.id}"
    name = f"{folder}/{weights[:_DIGITS]}.parquet"
    if run_id is None or name not in _artefacts(run_id, folder):
        return None
    with tempfile.TemporaryDirectory() as temporary:
        path, digest = _table(run_id, name, Path(temporary))
        if evidence.get(name, digest if others else None) != digest:
            log.info("The scores %s of the run %s are not those of the evidence.", name, run_id)
            return None
        try:
            return list(from_table(pq.read_table(path), Score))
        except ValueError as error:
            log.warning("The scores %s of the run %s cannot be read: %s", name, run_id, error)
            return None


def _table(run_id: str, name: str, folder: Path) -> tuple[Path, str]:
    """A copy of a stored table, and its sha256.

    Raises:
        ScoresInvalid: it is not the digest that was stored with it.
    """
    client = mlflow.MlflowClient()
    recorded = str(Path(name).with_suffix(_DIGEST))
    table = Path(client.download_artifacts(run_id, name, str(folder)))
    digest = file_sha256(table)
    known = recorded in _artefacts(run_id, str(Path(name).parent))
    if known:
        stored = Path(client.download_artifacts(run_id, recorded, str(folder))).read_bytes()
    if not known or stored != digest.encode():
        raise ScoresInvalid(
            f"the scores {name} of the run {run_id} do not have the sha256 in "
            f"{Path(recorded).name}; delete them from the run's artefacts to score again"
        )
    return table, digest


def why_not_stored(run_id: str | None, fingerprint: ScoresFingerprint) -> str:
    """What differs between the scores that a run has of a benchmark and those of a fingerprint."""
    if run_id is None:
        return "the store has no run"
    folders = _artefacts(run_id, SCORES)
    if not folders:
        return "no scores are stored with its run"
    if f"{SCORES}/{fingerprint.id}" in folders:
        return "its run has only scores of other weights (it is not registered in fp32?)"
    files = (file for folder in folders for file in _artefacts(run_id, folder))
    stored = (_read(run_id, file) for file in files if file.endswith(f"/{_FINGERPRINT_FILE}"))
    known = [each for each in stored if each]
    if not known:
        return "the fingerprints of its scores cannot be read"
    own = [each for each in known if each.benchmark == fingerprint.benchmark]
    if not own:
        return "its run has only scores of other benchmarks"
    closest = min((fingerprint.differences(each) for each in own), key=len)
    return f"its scores were computed with other {', '.join(closest)}"


def _artefacts(run_id: str, folder: str) -> list[str]:
    """Paths in a folder of a run's artefacts."""
    return [file.path for file in mlflow.MlflowClient().list_artifacts(run_id, folder)]


def _read(run_id: str, name: str) -> ScoresFingerprint | None:
    """A stored fingerprint; None if it is not of this version's format."""
    with tempfile.TemporaryDirectory() as folder:
        content = Path(mlflow.MlflowClient().download_artifacts(run_id, name, folder)).read_bytes()
    try:
        return parse(ScoresFingerprint, parse_json(content), Path(name).name)
    except ValueError as error:
        log.warning("%s of the run %s cannot be read: %s", name, run_id, error)
        return None


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
