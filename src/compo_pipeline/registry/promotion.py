"""Promotion: move the alias `champion` to a challenger that passes the gate, move it back, or copy
a version to another registry.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from click import ClickException

from compo_pipeline.configuration import SettingsError
from compo_pipeline.evaluation.settings import Bootstrap
from compo_pipeline.registry import gate, tracking
from compo_pipeline.registry.gate import Check
from compo_pipeline.registry.scores import FOLDERS, ScoresMissing, VersionScores
from compo_pipeline.registry.settings import CHAMPION, PREVIOUS, CopySettings, PromotionSettings
from compo_pipeline.registry.versions import (
    OUTCOME,
    Aliases,
    Contested,
    locked,
    run_of,
    same_model,
)

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

Outcome = Literal["promoted", "refused", "unchanged", "contested", "rolled back"]
# Prefix of a version's tags about the last decision.
_TAG = "promotion."
_MODEL = "model"

log = logging.getLogger(__name__)


class PromotionError(ClickException, RuntimeError):
    """An alias was not moved; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision about a version of a registered model.

    Attributes:
        name: the registered model.
        version: the version that was judged or rolled back.
        outcome: of a dry run, the outcome without it.
        reason: one sentence.
        previous: the champion before the decision, None if there was none.
        opponent: what the version was compared with.
        gate: the gate's fingerprint, empty without a gate.
        at: time, ISO 8601 in UTC.
        dry_run: whether the registry was left unchanged.
        checks: of the gate.
    """

    name: str
    version: int
    outcome: Outcome
    reason: str
    previous: int | None
    opponent: str
    gate: str
    at: str
    dry_run: bool = False
    checks: tuple[Check, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether the command ends with an error."""
        return self.outcome in ("refused", "contested")

    def summary(self) -> str:
        """Outcome and reason in one line."""
        dry = "dry run: " if self.dry_run else ""
        return f"{dry}{self.name} version {self.version}: {self.outcome}. {self.reason}"

    def tags(self) -> dict[str, str]:
        """Tags of the version; without a gate, those of an earlier gate stay."""
        tags = {
            OUTCOME: self.outcome,
            f"{_TAG}reason": self.reason,
            f"{_TAG}against": self.opponent,
            f"{_TAG}at": self.at,
        }
        if self.gate:
            checks = [asdict(check) for check in self.checks]
            tags |= {f"{_TAG}gate": self.gate, f"{_TAG}checks": json.dumps(checks)}
        return tags


def promote(
    name: str, alias: str, scorer: VersionScores, settings: PromotionSettings, bootstrap: Bootstrap
) -> Decision:
    """Compare the challenger with the champion, or with its base if there is none, and decide.

    Args:
        name: the registered model.
        alias: of the challenger.
        scorer: source of the scores.
        settings: gate, dry run.
        bootstrap: of the intervals.

    Raises:
        PromotionError: there is no challenger, or it was champion and was rolled back.
    """
    with _aliases(name, settings) as aliases:
        number, champion = aliases.version(alias), aliases.version(CHAMPION)
        if number is None:
            raise PromotionError(
                f"promotion: no version of {name} has the alias '{alias}'; register one, or name "
                "another in registration.alias"
            )
        decision = Decision(
            name=name,
            version=number,
            outcome="unchanged",
            reason="It is the champion already.",
            previous=champion,
            opponent="",
            gate=settings.gate.fingerprint(bootstrap),
            at=_now(),
            dry_run=settings.dry_run,
        )
        if number == champion:
            return decision
        decision = _judged(decision, scorer, settings, bootstrap)
        if settings.dry_run:
            return decision
        # Before the alias moves: after a kill, no champion may lack its record.
        _write_tags(decision)
        if decision.outcome == "promoted":
            decision = _moved(decision, aliases)
        return decision


def roll_back(name: str, settings: PromotionSettings) -> Decision:
    """Give the alias `champion` back to the previous champion.

    The alias `previous` is deleted: a second rollback must not restore what was rolled back.

    Raises:
        PromotionError: there is no champion, or no previous one.
    """
    with _aliases(name, settings) as aliases:
        champion, previous = aliases.version(CHAMPION), aliases.version(PREVIOUS)
        if champion is None or previous is None or champion == previous:
            raise PromotionError(
                f"promotion.action: there is nothing to roll back in {name}: champion is version "
                f"{champion or 'none'}, previous is version {previous or 'none'}"
            )
        decision = Decision(
            name=name,
            version=champion,
            outcome="rolled back",
            reason=f"The champion is version {previous} again.",
            previous=champion,
            opponent=f"version {previous}",
            gate="",
            at=_now(),
            dry_run=settings.dry_run,
        )
        if settings.dry_run:
            return decision
        # Before the alias moves: without its tag, the version would pass the same gate again.
        _write_tags(decision)
        try:
            aliases.move(CHAMPION, champion, previous)
            _client().delete_registered_model_alias(name, PREVIOUS)
        except Contested as error:
            # The tag stays: wherever the alias is now, this version was rolled back.
            decision = replace(decision, outcome="contested", reason=error.message)
        return decision


def copy_version(name: str, settings: CopySettings, *, dry_run: bool = False) -> int | None:
    """Copy a version, under the same name, to another registry.

    The copy is a version of a new run, which has its files and scores. A version of the same
    checkpoint in the same precision is not copied twice.

    Args:
        name: of the model.
        settings: source and target.
        dry_run: change nothing.

    Returns:
        The version's number in the other registry; None if a dry run would create it.

    Raises:
        SettingsError: no registry is named or none answers, or no version has the alias.
    """
    import mlflow
    from mlflow.exceptions import MlflowException

    if settings.to is None:
        raise SettingsError("promotion.copy.to: expected the other registry's URI, got null")
    tracking.registered_model(name)
    try:
        version = _client().get_model_version_by_alias(name, settings.alias)
    except MlflowException as error:
        raise SettingsError(
            f"promotion.copy.alias: no version of {name} has '{settings.alias}' ({error.message})"
        ) from None
    with tracking.store_errors(settings.to, "promotion.copy.to"):
        target = mlflow.MlflowClient(tracking_uri=settings.to, registry_uri=settings.to)
        copied = same_model(target, name, version.tags)
    if dry_run:
        return int(copied.version) if copied else None
    if copied is None:
        experiment = tracking.experiment_in(settings.to, settings.experiment, "promotion.copy.to")
        copied = _copied(target, version, experiment)
        log.info("Copied %s version %s as version %s.", name, version.version, copied.version)
    else:
        log.info("%s version %s was copied before, as %s.", name, version.version, copied.version)
    target.set_registered_model_alias(name, settings.gives, copied.version)
    return int(copied.version)


def _copied(target: Any, version: ModelVersion, experiment: str) -> ModelVersion:
    import mlflow
    from mlflow.exceptions import MlflowException

    origin = f"models:/{version.name}/{version.version}"
    tags = {"copied_from": origin, "copied_from_run": version.run_id or ""}
    name = f"copy of {version.name} {version.version}"
    run = target.create_run(experiment, run_name=name, tags=tags)
    run_id = run.info.run_id
    with tempfile.TemporaryDirectory() as temporary:
        files = mlflow.artifacts.download_artifacts(origin, dst_path=f"{temporary}/{_MODEL}")
        target.log_artifacts(run_id, files, _MODEL)
        if source_run := run_of(version):
            stored = {file.path for file in _client().list_artifacts(source_run)}
            for folder in stored.intersection(FOLDERS):
                path = _client().download_artifacts(source_run, folder, temporary)
                target.log_artifacts(run_id, path, folder)
    target.set_terminated(run_id)
    try:
        target.create_registered_model(version.name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    copy: ModelVersion = target.create_model_version(
        version.name,
        source=f"{run.info.artifact_uri}/{_MODEL}",
        run_id=run_id,
        # Decisions of this registry do not hold in the other one.
        tags={k: v for k, v in version.tags.items() if not k.startswith(_TAG)} | tags,
        description=version.description,
    )
    return copy


@contextmanager
def _aliases(name: str, settings: PromotionSettings) -> Iterator[Aliases]:
    """The aliases of a model, with a lock on a local store."""
    import mlflow

    tracking.registered_model(name)
    uri = mlflow.get_registry_uri()
    with locked(uri):
        yield Aliases(name, settle=0 if tracking.local_file(uri) else settings.settle)


def _judged(
    decision: Decision, scorer: VersionScores, settings: PromotionSettings, bootstrap: Bootstrap
) -> Decision:
    challenger = _client().get_model_version(decision.name, str(decision.version))
    if challenger.tags.get(OUTCOME) == "rolled back":
        # The same scores would pass the same gate again.
        raise PromotionError(
            f"promotion: version {decision.version} of {decision.name} was rolled back; register "
            f"another one, or delete its tag {OUTCOME} to let it try again"
        )
    champion, opponent = None, f"its base, {challenger.tags.get('base_model', 'of unknown name')}"
    if decision.previous is not None:
        champion = _client().get_model_version(decision.name, str(decision.previous))
        opponent = f"champion, version {decision.previous}"
    try:
        ours = scorer.of(challenger)
        theirs = scorer.of(champion) if champion else scorer.base_of(challenger)
    except ScoresMissing as error:
        checks: tuple[Check, ...] = (Check("scores", "", False, error.message),)
    else:
        overlaps = scorer.overlaps(challenger)
        checks = gate.judge(ours, theirs, overlaps, settings.gate, bootstrap, scorer.titles)
    failed = [f"{check.rule} ({check.subject})" for check in checks if not check.passed]
    return replace(
        decision,
        outcome="refused" if failed else "promoted",
        reason=f"Failed: {'; '.join(failed)}." if failed else "It passed every check.",
        opponent=opponent,
        checks=checks,
    )


def _moved(decision: Decision, aliases: Aliases) -> Decision:
    try:
        aliases.expect(CHAMPION, decision.previous, "after the versions were compared")
        # Before `champion`: after a kill between the two, a rollback is still possible.
        if decision.previous is not None:
            aliases.move(PREVIOUS, aliases.version(PREVIOUS), decision.previous)
        aliases.move(CHAMPION, decision.previous, decision.version)
    except Contested as error:
        decision = replace(decision, outcome="contested", reason=error.message)
        _write_tags(decision)
    return decision


def _write_tags(decision: Decision) -> None:
    for key, value in decision.tags().items():
        _client().set_model_version_tag(decision.name, str(decision.version), key, value)


def _client() -> Any:
    import mlflow

    return mlflow.MlflowClient()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
