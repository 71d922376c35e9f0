"""Rescoring: a version is registered again with evidence that is computed anew from its files."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import mlflow
from mlflow.entities.model_registry import ModelVersion

from compo_pipeline.configuration.settings import SettingsError
from compo_pipeline.evaluation.comparison import BASE, FINE_TUNED
from compo_pipeline.evaluation.contamination import TrainingRows
from compo_pipeline.evaluation.evaluate import BenchmarkItems, evaluate
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.evaluation.verdicts import scored_items
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.run.compute import choose_device
from compo_pipeline.storage.records import Caption, Score
from compo_pipeline.tracking import runs as tracking
from compo_pipeline.versions import versions
from compo_pipeline.versions.copies import register_files
from compo_pipeline.versions.evidence import VERSION, Evidence, write_evidence
from compo_pipeline.versions.promotion import locked_aliases
from compo_pipeline.versions.reference import write_reference
from compo_pipeline.versions.registration import Registered
from compo_pipeline.versions.settings import RegistrationSettings
from compo_pipeline.versions.signing import signer
from compo_pipeline.versions.verification import (
    VerifiedVersion,
    VersionError,
    load_base,
    verified,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingDataset:
    """Captions, image folder and hashes of the dataset that a version was trained on.

    Attributes:
        captions: the dataset's valid captions of all splits.
        root: folder of their images.
        known: hashes of the training rows.
        data_hash: fingerprint of the training data.
    """

    captions: Sequence[Caption]
    root: Path
    known: TrainingRows
    data_hash: str


@dataclass(frozen=True)
class Benchmarking:
    """Inputs to score a version again: benchmark items, training data, base model and settings.

    Attributes:
        items: what is scored.
        data: of its training.
        base: the base model's settings.
        evaluation: settings of scoring.
    """

    items: BenchmarkItems
    data: TrainingDataset
    base: ModelSettings
    evaluation: EvaluationSettings


def rescore(asked: Benchmarking, settings: RegistrationSettings, settle: float) -> Registered:
    """Score a version and its base again, and register it as a new version with these scores.

    No stored score and no stored overlap is used. The new version has the same files but for the
    evidence. It takes all aliases of the old one, and what a promotion or a rollback has said of
    it: the model is the same.

    Args:
        asked: benchmarks, base and data.
        settings: name, alias and keys.
        settle: seconds after which a moved alias of a server is read again.

    Raises:
        SettingsError: there is no such version, it was trained on other data or from another base,
            or the private key cannot be used.
        VersionError: its files are not those that were registered.
        Contested: another process moved an alias at the same time.
    """
    name, alias = settings.name, settings.rescore or settings.alias
    if alias is None:
        raise SettingsError("registration.alias: expected the alias of the version, got null")
    if settings.signing.public_key is not None:
        signer(settings.signing)
    key = "registration.alias" if settings.rescore is None else "registration.rescore"
    version = versions.find(name, alias, None, key)
    with tempfile.TemporaryDirectory() as folder:
        files = verified(version, Path(folder), settings.signing)
        if files.lineage.data_hash != asked.data.data_hash:
            raise SettingsError(
                f"dataset: version {version.version} of {name} was trained on data with the "
                f"fingerprint {(files.lineage.data_hash or 'none')[:16]}, this dataset has "
                f"{asked.data.data_hash[:16]}; use the --env and the data of its training"
            )
        _replace_evidence(files, asked, settings.reference_rows)
        made, taken = _register_rescored(version, files, settings, settle)
    if alias not in taken:
        log.warning("The alias '%s' was moved meanwhile and stays where it is.", alias)
    log.info("%s version %s is version %s with new evidence.", name, version.version, made.version)
    return Registered(
        name=name,
        version=int(made.version),
        alias=alias if alias in taken else None,
        run_id=made.run_id or "",
        model_uri=f"models:/{name}/{made.version}",
        fresh=True,
    )


def _replace_evidence(files: VerifiedVersion, asked: Benchmarking, rows: int) -> None:
    """Score a version and its base again, and replace the evidence in its exported folder."""
    device = choose_device(asked.evaluation.device, key="evaluation.device")
    model = files.model.to(device)
    models: dict[str, Callable[[], LoadedModel]] = {
        BASE: partial(load_base, files.lineage, asked.base, str(device)),
        FINE_TUNED: lambda: model,
    }
    record = files.lineage
    subtasks, slices = asked.items.subtasks, asked.items.slices
    scores, comparison = evaluate(
        subtasks, models, VERSION, VERSION, "", asked.data.known, asked.evaluation, slices
    )
    _log_changed_verdicts(files, scores, f"{record.name} version {record.version}")
    by_role = {
        role: scores.having("model", [model.name]) for role, model in comparison.models.items()
    }
    items = scored_items(subtasks, slices)
    write_evidence(files.export, Evidence.from_comparison(comparison), by_role, items)
    write_reference(
        files.export, model, asked.data.captions, asked.data.root, rows, asked.evaluation
    )


def _register_rescored(
    version: ModelVersion, files: VerifiedVersion, settings: RegistrationSettings, settle: float
) -> tuple[ModelVersion, list[str]]:
    """Register a version's files with new scores; returns the new version and the moved aliases."""
    name, number = settings.name, int(version.version)
    origin = {"rescored_from": f"models:/{name}/{number}"}
    run_id = tracking.open_run(f"rescored {name} {number}", origin)
    client = mlflow.MlflowClient()
    with tracking.adopt(run_id), locked_aliases(name, settle) as aliases:
        tags = origin | versions.lasting_decision(version)
        made = register_files(client, version, files.folder, run_id, tags, settings.signing)
        found = client.get_registered_model(name).aliases
        taken = [alias for alias, owner in found.items() if int(owner) == number]
        for alias in taken:
            aliases.move(alias, number, int(made.version))
    return made, taken


def _log_changed_verdicts(files: VerifiedVersion, computed: Iterable[Score], name: str) -> None:
    """Log how many correct/wrong verdicts of the stored scores differ from those computed now."""
    try:
        tables = files.tables()
    except VersionError as error:
        log.warning("No stored scores to compare with: %s", error.message)
        return
    before = {_score_key(score): score.correct for score in (*tables.version, *tables.base)}
    found = [(before[key], row.correct) for row in computed if (key := _score_key(row)) in before]
    if not found:
        return
    differ = sum(stored != now for stored, now in found)
    message = "%d of %d stored verdicts of %s and its base differ from those computed now."
    log.log(logging.WARNING if differ else logging.INFO, message, differ, len(found), name)


def _score_key(score: Score) -> tuple[str, ...]:
    """Key of a score row: model, benchmark, subtask, metric, item and group."""
    return score.model, score.benchmark, score.subtask, score.metric, score.item, score.group
