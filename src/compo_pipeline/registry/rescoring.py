"""Rescoring: a version is registered again with evidence that is computed anew from its files."""

from __future__ import annotations

import logging
from dataclasses import replace

import mlflow
from mlflow.entities.model_registry import ModelVersion

from compo_pipeline.configuration import SettingsError
from compo_pipeline.evaluation.comparison import BASE
from compo_pipeline.evaluation.contamination import TrainingRows, overlaps
from compo_pipeline.records import Score
from compo_pipeline.registry import scores, tracking, versions
from compo_pipeline.registry.copies import register_files
from compo_pipeline.registry.evidence import Evidence, write_evidence
from compo_pipeline.registry.registration import Registered
from compo_pipeline.registry.scores import ScoresInvalid
from compo_pipeline.registry.settings import RegistrationSettings
from compo_pipeline.registry.signing import signer
from compo_pipeline.registry.version_scores import VERSION, ScoresMissing, VersionScores

log = logging.getLogger(__name__)


def rescore(
    scorer: VersionScores, known: TrainingRows, data_hash: str, settings: RegistrationSettings
) -> Registered:
    """Score the version with an alias and its base, and register it again with that evidence.

    No stored score and no stored overlap is used. The new version has the same files but for the
    evidence, and takes the alias.

    Args:
        scorer: the benchmarks and the base; its own stored scores are compared with the new ones.
        known: what identifies the training rows.
        data_hash: fingerprint of the training data.
        settings: name, alias and keys.

    Raises:
        SettingsError: there is no such version, it was trained on other data or from another base,
            or the private key cannot be used.
        VersionError: its files are not those that were registered.
    """
    name, alias = settings.name, settings.alias
    if alias is None:
        raise SettingsError("registration.alias: expected the alias of the version, got null")
    if settings.signing.public_key is not None:
        signer(settings.signing)
    version = versions.find(name, alias, None, "registration.alias")
    files = scorer.verified(version)
    if files.lineage.data_hash != data_hash:
        raise SettingsError(
            f"dataset: version {version.version} of {name} was trained on data with the "
            f"fingerprint {(files.lineage.data_hash or 'none')[:16]}, this dataset has "
            f"{data_hash[:16]}; use the --env and the data of its training"
        )
    stored = _stored(scorer, version)
    origin = {"rescored_from": f"models:/{name}/{version.version}"}
    run_id = tracking.open_run(f"rescored {name} {version.version}", origin)
    with tracking.adopt(run_id) as run:
        computed = scorer.compute(version, run)
        _compare(stored, computed, f"{name} version {version.version}")
        measured = overlaps(scorer.subtasks, known, scorer.evaluation.workers, {})
        write_evidence(files.export, Evidence(scores.digests(run_id), tuple(measured)))
        client = mlflow.MlflowClient()
        made = register_files(client, version, files.folder, run_id, origin, settings.signing)
        client.set_registered_model_alias(name, alias, made.version)
    log.info("%s version %s is version %s with new evidence.", name, version.version, made.version)
    return Registered(
        name=name,
        version=int(made.version),
        alias=alias,
        run_id=run_id,
        model_uri=f"models:/{name}/{made.version}",
        fresh=True,
    )


def _stored(scorer: VersionScores, version: ModelVersion) -> list[Score]:
    """The stored scores of a version and of its base; none if they cannot be used."""
    try:
        own, base = scorer.of(version), scorer.base_of(version)
    except (ScoresMissing, ScoresInvalid) as error:
        log.warning("No stored scores to compare with: %s", error.message)
        return []
    return [
        replace(score, model=name)
        for name, found in ((VERSION, own), (BASE, base))
        for score in found
    ]


def _compare(stored: list[Score], computed: list[Score], name: str) -> None:
    """Say how many verdicts of stored scores differ from computed ones."""
    before, now = ({_key(score): score.correct for score in each} for each in (stored, computed))
    common = before.keys() & now.keys()
    if not common:
        return
    differ = sum(before[key] != now[key] for key in common)
    message = "%d of %d stored verdicts of %s and its base differ from those computed now."
    log.log(logging.WARNING if differ else logging.INFO, message, differ, len(common), name)


def _key(score: Score) -> tuple[str, ...]:
    return score.model, score.benchmark, score.subtask, score.metric, score.item, score.group
