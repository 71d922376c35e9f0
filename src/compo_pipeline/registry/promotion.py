"""Promotion: the alias `champion` moves to a challenger that passes the gate, or back.

A store in a local file is locked while an alias is decided on. On a server a champion that another
process moved during the comparison ends the promotion.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import mlflow
from filelock import FileLock
from mlflow.entities.model_registry import ModelVersion

from compo_pipeline.benchmarks.items import Role
from compo_pipeline.core.settings import PlainError
from compo_pipeline.registry import gate, versions
from compo_pipeline.registry import runs as tracking
from compo_pipeline.registry.evidence import read_tables
from compo_pipeline.registry.gate import Check
from compo_pipeline.registry.settings import (
    CHAMPION,
    PREVIOUS,
    PromotionSettings,
    SigningSettings,
)
from compo_pipeline.registry.verification import VerifiedFiles, VersionError, verified
from compo_pipeline.registry.versions import DECISION_TAG, OUTCOME

Outcome = Literal["promoted", "refused", "unchanged", "rolled back"]

log = logging.getLogger(__name__)


class PromotionError(PlainError, RuntimeError):
    """Exception: promotion or rollback moved no alias.

    The message gives the reason.
    """


@dataclass(frozen=True, slots=True)
class Decision:
    """Outcome of a promotion or a rollback of a registered version, with the gate's checks.

    Attributes:
        name: the registered model.
        version: the version that was judged or rolled back.
        outcome: outcome. A dry run has the outcome that it would have had otherwise.
        reason: one sentence.
        previous: the champion before the decision, None if there was none.
        opponent: version or base that the version was compared with.
        gate: the gate's fingerprint, empty without a gate.
        at: time, ISO 8601 in UTC.
        dry_run: whether the registry was left unchanged.
        checks: checks of the gate.
    """

    name: str
    version: int
    outcome: Outcome
    reason: str
    previous: int | None
    opponent: str
    gate: str
    at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    dry_run: bool = False
    checks: tuple[Check, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether the outcome makes the command end with an error."""
        return self.outcome == "refused"

    @property
    def waived(self) -> list[Role]:
        """Benchmark roles (such as retrieval) that were not scored, as `promotion.waive` allows."""
        return list(dict.fromkeys(check.waived for check in self.checks if check.waived))

    def summary(self) -> str:
        """One line with the model, the version, the outcome and the reason."""
        dry = "dry run: " if self.dry_run else ""
        return f"{dry}{self.name} version {self.version}: {self.outcome}. {self.reason}"

    def tags(self) -> dict[str, str]:
        """The decision as tags of the MLflow version.

        Only a gate gives tags about checks.
        """
        tags = {
            OUTCOME: self.outcome,
            f"{DECISION_TAG}reason": self.reason,
            f"{DECISION_TAG}against": self.opponent,
            f"{DECISION_TAG}at": self.at,
        }
        if self.gate:
            checks = [asdict(check) for check in self.checks]
            tags |= {
                f"{DECISION_TAG}gate": self.gate,
                f"{DECISION_TAG}checks": json.dumps(checks),
                f"{DECISION_TAG}waived": ", ".join(self.waived) or "none",
            }
        return tags


def promote(
    name: str, alias: str, settings: PromotionSettings, signing: SigningSettings
) -> Decision:
    """Decide by the gate whether the challenger becomes champion, and move the aliases if it does.

    All that is compared is in the evidence of the two versions. A challenger whose files are not
    those that were registered, or that was scored in another way than the champion, is refused.

    Args:
        name: the registered model.
        alias: alias of the challenger.
        settings: gate, dry run.
        signing: the configured keys.

    Raises:
        PromotionError: no version has the alias, it was rolled back, or another process moved the
            alias `champion` meanwhile.
        SettingsError: an alias names a version that does not exist.
    """
    with _locked(name, signing):
        aliases = _aliases(name)
        number, champion = aliases.get(alias), aliases.get(CHAMPION)
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
            gate=gate.fingerprint(settings.gate, settings.waive),
            dry_run=settings.dry_run,
        )
        if number == champion:
            return decision
        decision = _decide(decision, alias, settings, signing)
        if not settings.dry_run and (found := _aliases(name).get(CHAMPION)) != champion:
            raise PromotionError(
                f"promotion: the champion of {name} was version {champion or 'none'} when the "
                f"versions were compared, and is version {found or 'none'} now; run again"
            )
        if decision.outcome == "refused":
            return _carry_out(decision, {})
        # First `previous`: after a kill between the two, a rollback is still possible.
        before = {} if champion is None else {PREVIOUS: champion}
        return _carry_out(decision, {**before, CHAMPION: number})


def roll_back(name: str, settings: PromotionSettings, signing: SigningSettings) -> Decision:
    """Give the alias `champion` back to the previous champion.

    The alias `previous` is deleted: a second rollback must not restore what was rolled back.

    Args:
        name: the registered model.
        settings: dry run.
        signing: the configured keys.

    Raises:
        PromotionError: there is no champion, or no previous one.
        SettingsError: the alias `previous` names a version that does not exist.
        VersionError: the previous champion's files are not those that were registered.
    """
    with _locked(name, signing):
        aliases = _aliases(name)
        champion, previous = aliases.get(CHAMPION), aliases.get(PREVIOUS)
        if champion is None or previous is None or champion == previous:
            raise PromotionError(
                f"there is nothing to roll back in {name}: champion is version "
                f"{champion or 'none'}, previous is version {previous or 'none'}"
            )
        with tempfile.TemporaryDirectory() as folder:
            verified(versions.find(name, PREVIOUS, previous), Path(folder), signing).load()
        decision = Decision(
            name=name,
            version=champion,
            outcome="rolled back",
            reason=f"The champion is version {previous} again.",
            previous=champion,
            opponent=f"version {previous}",
            gate="",
            dry_run=settings.dry_run,
        )
        return _carry_out(decision, {CHAMPION: previous, PREVIOUS: None})


@contextmanager
def _locked(name: str, signing: SigningSettings) -> Iterator[None]:
    """Context manager that allows one process to decide on a model's aliases in a local store."""
    if signing.public_key is None:
        log.warning(
            "registration.signing is not set: whoever can write the store can forge evidence."
        )
    tracking.registered_model(name)
    file = tracking.local_file(mlflow.get_registry_uri())
    with (
        tracking.store_errors(),
        FileLock(file.with_name(f"{file.name}.promotion.lock")) if file else nullcontext(),
    ):
        yield


def _aliases(name: str) -> dict[str, int]:
    """Numbers of a registered model's versions, by alias."""
    found = tracking.registered_model(name).aliases
    return {alias: int(number) for alias, number in found.items()}


def _carry_out(decision: Decision, moves: Mapping[str, int | None]) -> Decision:
    """Record a decision on its version, and move or delete aliases, unless it is a dry run.

    The record comes first: after a kill, no champion may lack it, and no version that was rolled
    back may pass the same gate again.
    """
    client, name = mlflow.MlflowClient(), decision.name
    if decision.dry_run:
        return decision
    for key, value in decision.tags().items():
        client.set_model_version_tag(name, str(decision.version), key, value)
    for alias, number in moves.items():
        if number is None:
            client.delete_registered_model_alias(name, alias)
        else:
            client.set_registered_model_alias(name, alias, str(number))
    return decision


def _decide(
    decision: Decision, alias: str, settings: PromotionSettings, signing: SigningSettings
) -> Decision:
    """Compare the challenger with the champion by the gate: a decision to promote or to refuse."""
    challenger = versions.find(decision.name, alias, decision.version)
    if challenger.tags.get(OUTCOME) == "rolled back":
        # The same scores would pass the same gate again.
        raise PromotionError(
            f"promotion: version {decision.version} of {decision.name} was rolled back; register "
            f"another one, or delete its tag {OUTCOME} to let it try again"
        )
    champion, opponent = None, f"its base, {challenger.tags.get('base_model', 'of unknown name')}"
    if decision.previous is not None:
        champion = versions.find(decision.name, CHAMPION, decision.previous)
        opponent = f"champion, version {decision.previous}"
    try:
        checks = _judge(challenger, champion, alias, settings, signing)
    except VersionError as error:
        other = f"; without the alias '{CHAMPION}' a challenger is compared with its base"
        checks = (Check("files", "", False, error.message + (other if champion else "")),)
    failed = [
        f"{check.rule} ({check.subject})" if check.subject else check.rule
        for check in checks
        if not check.passed
    ]
    decision = replace(decision, opponent=opponent, checks=checks)
    if failed:
        return replace(decision, outcome="refused", reason=f"Failed: {'; '.join(failed)}.")
    waived = f" Waived: {', '.join(decision.waived)}." if decision.waived else ""
    return replace(decision, outcome="promoted", reason=f"It passed every check.{waived}")


def _judge(
    challenger: ModelVersion,
    champion: ModelVersion | None,
    alias: str,
    settings: PromotionSettings,
    signing: SigningSettings,
) -> tuple[Check, ...]:
    """The gate's checks of a challenger's evidence against that of its opponent.

    Args:
        challenger: the version that may become champion.
        champion: version with the alias champion. None compares with the challenger's base.
        alias: alias of the challenger, for the command in an error.
        settings: settings of the gate, and the waived roles.
        signing: the configured keys.

    Raises:
        VersionError: a version's files are not those that were registered.
    """
    with tempfile.TemporaryDirectory() as temporary:
        ours = verified(challenger, Path(temporary) / "challenger", signing)
        theirs = None
        if champion is not None:
            theirs = verified(champion, Path(temporary) / "champion", signing)
        if reason := _incomparable(ours, theirs, alias):
            return (Check("evidence", "", False, reason),)
        scores, base, slices = ours.read(read_tables)
        return gate.judge(
            scores,
            base if theirs is None else theirs.read(read_tables)[0],
            ours.evidence.overlaps,
            settings.gate,
            ours.evidence.titles,
            slices,
            settings.waive,
        )


def _incomparable(ours: VerifiedFiles, theirs: VerifiedFiles | None, alias: str) -> str | None:
    """Reason why the gate cannot judge a version by its evidence, or None if it can."""
    number, evidence = ours.lineage.version, ours.evidence
    for files, name in ((ours, alias), (theirs, CHAMPION)):
        if files is not None and files.evidence.version != files.lineage.fingerprint:
            return (
                f"version {files.lineage.version} has scores of other weights than its own, as "
                f"those of a registration.precision of fp16; {_rescoring_hint(name)}"
            )
    if evidence.selecting:
        named = ", ".join(f"{name} ({key})" for name, key in evidence.selecting.items())
        return (
            f"version {number} was scored on items that select weights or settings: {named}; "
            f"{_rescoring_hint(alias)}"
        )
    if theirs is None and evidence.base != ours.lineage.base_fingerprint:
        return (
            f"version {number} has scores of another base than the one that it was fine-tuned "
            f"from; {_rescoring_hint(alias)}"
        )
    if theirs is not None and (differences := evidence.differences(theirs.evidence)):
        return (
            f"versions {number} and {theirs.lineage.version} were not scored in the same way "
            f"({'; '.join(differences)}); {_rescoring_hint(CHAMPION)}, "
            f"registration.rescore={alias} the challenger"
        )
    return None


def _rescoring_hint(alias: str) -> str:
    """The part of an error message with the command that scores a version again."""
    return (
        f"`kedro run --pipeline=rescore --params registration.rescore={alias}` scores the version "
        f"with the alias '{alias}' on today's files"
    )
