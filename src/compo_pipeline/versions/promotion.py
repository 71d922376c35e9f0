"""Promotion: the alias `champion` moves to a challenger that passes the gate, or back.

A store in a local file is locked while an alias is decided on. On a server the last write to an
alias wins: a concurrent move is detected, not prevented.
"""

from __future__ import annotations

import json
import logging
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import mlflow
from filelock import FileLock, Timeout
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from compo_pipeline.benchmarks.items import Role
from compo_pipeline.configuration.settings import PlainError
from compo_pipeline.storage.records import Score
from compo_pipeline.tracking import runs as tracking
from compo_pipeline.versions import gate, versions
from compo_pipeline.versions.gate import Check
from compo_pipeline.versions.lineage import Lineage
from compo_pipeline.versions.settings import (
    CHAMPION,
    PREVIOUS,
    PromotionSettings,
    SigningSettings,
)
from compo_pipeline.versions.shadow import COLLECT, Agreement, read_agreement
from compo_pipeline.versions.verification import (
    VerifiedFiles,
    VersionError,
    verified,
    verified_files,
)
from compo_pipeline.versions.versions import DECISION_TAG, OUTCOME

Outcome = Literal["promoted", "refused", "unchanged", "contested", "rolled back"]

log = logging.getLogger(__name__)


class PromotionError(PlainError, RuntimeError):
    """Exception: promotion or rollback moved no alias; the message gives the reason."""


class Incomparable(PlainError, ValueError):
    """Exception: scores are of different weights, items, images, code or settings."""


class Contested(PlainError, RuntimeError):
    """Exception: another process moved a registry alias at the same time."""


@dataclass(frozen=True, slots=True)
class Aliases:
    """Reads and moves the aliases of one registered model, and detects concurrent moves.

    `settle` is the number of seconds after which a moved alias is read again.
    """

    name: str
    settle: float = 0.0

    def version(self, alias: str) -> int | None:
        """Number of the version that has the alias; None if no version has it."""
        # The model's own list: asking for one alias cannot tell a missing one from an error.
        aliases = mlflow.MlflowClient().get_registered_model(self.name).aliases
        return int(aliases[alias]) if alias in aliases else None

    def move(self, alias: str, before: int | None, to: int) -> None:
        """Move an alias to a version; an error if another process moved it at the same time.

        Args:
            alias: its name.
            before: the version that had it when the move was decided.
            to: the version that gets it.

        Raises:
            Contested: another version had it before the move, or has it after the move.
        """
        self.expect(alias, before, "before it was moved; nothing was changed by this move")
        mlflow.MlflowClient().set_registered_model_alias(self.name, alias, str(to))
        time.sleep(self.settle)
        self.expect(alias, to, "after it was moved: another process moved it at the same time")

    def expect(self, alias: str, version: int | None, when: str) -> None:
        """Raise an error unless an alias names the expected version.

        Raises:
            Contested: another one has it.
        """
        found = self.version(alias)
        if found != version:
            expected, actual = (
                "no version" if number is None else f"version {number}"
                for number in (version, found)
            )
            raise Contested(
                f"contested: the alias '{alias}' of {self.name} should be at {expected} "
                f"and is at {actual} {when}. Look at the registry, then run again"
            )


@dataclass(frozen=True, slots=True)
class Decision:
    """Outcome of a promotion or a rollback of a registered version, with the gate's checks.

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
        pipeline: which one decided, `promotion` or `rollback`.
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
    pipeline: str = "promotion"

    @property
    def failed(self) -> bool:
        """Whether the outcome makes the command end with an error (refused or contested)."""
        return self.outcome in ("refused", "contested")

    @property
    def waived(self) -> list[Role]:
        """Benchmark roles (such as retrieval) that were not scored, as `promotion.waive` allows."""
        return list(dict.fromkeys(check.waived for check in self.checks if check.waived))

    def summary(self) -> str:
        """One line with the model, the version, the outcome and the reason."""
        dry = "dry run: " if self.dry_run else ""
        return f"{dry}{self.name} version {self.version}: {self.outcome}. {self.reason}"

    def tags(self) -> dict[str, str]:
        """The decision as tags of the MLflow version; tags about checks only after a gate."""
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
        alias: of the challenger.
        settings: gate, dry run.
        signing: the configured keys.

    Raises:
        PromotionError: there is no challenger, or it was champion and was rolled back.
        SettingsError: an alias names a version that does not exist.
    """
    _warn_unsigned(signing)
    with locked_aliases(name, settings.settle) as aliases:
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
            gate=gate.fingerprint(settings.gate, settings.waive),
            at=_now(),
            dry_run=settings.dry_run,
        )
        if number == champion:
            return decision
        decision = _decide_by_gate(decision, alias, settings, signing)
        if settings.dry_run:
            return decision
        # Before the alias moves: after a kill, no champion may lack its record.
        _write_tags(decision)
        if decision.outcome == "promoted":
            decision = _move_aliases(decision, aliases)
        return decision


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
    _warn_unsigned(signing)
    with locked_aliases(name, settings.settle) as aliases:
        champion, previous = aliases.version(CHAMPION), aliases.version(PREVIOUS)
        if champion is None or previous is None or champion == previous:
            raise PromotionError(
                f"there is nothing to roll back in {name}: champion is version "
                f"{champion or 'none'}, previous is version {previous or 'none'}"
            )
        with tempfile.TemporaryDirectory() as folder:
            verified(versions.aliased_version(name, PREVIOUS, previous), Path(folder), signing)
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
            pipeline="rollback",
        )
        if settings.dry_run:
            return decision
        # Before the alias moves: without its tag, the version would pass the same gate again.
        _write_tags(decision)
        try:
            aliases.move(CHAMPION, champion, previous)
            mlflow.MlflowClient().delete_registered_model_alias(name, PREVIOUS)
        except Contested as error:
            # The tag stays: wherever the alias is now, this version was rolled back.
            decision = replace(decision, outcome="contested", reason=error.message)
        return decision


def repair(name: str, settings: PromotionSettings, signing: SigningSettings) -> list[str]:
    """Delete a model's aliases whose version does not exist any more.

    The alias `champion` goes back to the previous champion instead, if its files are intact.

    Args:
        name: the registered model.
        settings: dry run.
        signing: the configured keys.

    Returns:
        A sentence for each such alias.

    Raises:
        Contested: another process moved an alias at the same time.
    """
    with locked_aliases(name, settings.settle) as aliases:
        client, found = mlflow.MlflowClient(), tracking.registered_model(name).aliases
        numbers = {alias: int(number) for alias, number in found.items()}
        gone = {each: n for each, n in numbers.items() if versions.get(name, n) is None}
        previous = None
        if CHAMPION in gone and PREVIOUS in numbers.keys() - gone.keys():
            previous = _intact_version(name, numbers[PREVIOUS], signing)
        done = []
        for alias, number in sorted(gone.items()):
            restored = previous if alias == CHAMPION else None
            then = "it is deleted" if restored is None else f"it goes back to version {restored}"
            done.append(
                f"The alias '{alias}' names version {number}, which does not exist: {then}."
            )
            if settings.dry_run:
                continue
            if restored is None:
                client.delete_registered_model_alias(name, alias)
            else:
                aliases.move(CHAMPION, number, restored)
                client.delete_registered_model_alias(name, PREVIOUS)
        return done


def _intact_version(name: str, number: int, signing: SigningSettings) -> int | None:
    """Number of the version that was champion before; None if its files were changed."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            verified(versions.aliased_version(name, PREVIOUS, number), Path(folder), signing)
    except VersionError as error:
        log.warning("Not made champion again: %s", error.message)
        return None
    return number


def _warn_unsigned(signing: SigningSettings) -> None:
    """Log a warning if no public key is configured, so that evidence could be forged."""
    if signing.public_key is None:
        log.warning(
            "registration.signing is not set: whoever can write the store can forge evidence."
        )


@contextmanager
def locked_aliases(name: str, settle: float) -> Iterator[Aliases]:
    """Context manager: a model's aliases, under a lock if the store is a local file.

    Args:
        name: of the registered model.
        settle: seconds after which a moved alias of a server is read again.
    """
    tracking.registered_model(name)
    file = tracking.local_file(mlflow.get_registry_uri())
    if file is None:
        yield Aliases(name, settle)
        return
    tracking.refuse_read_only(file)
    lock = FileLock(file.with_name(f"{file.name}.promotion.lock"))
    with tracking.store_errors():
        try:
            lock.acquire(blocking=False)
        except Timeout:
            log.info("Waiting for another promotion in the same store.")
            lock.acquire()
    try:
        yield Aliases(name)
    finally:
        lock.release()


def _decide_by_gate(
    decision: Decision, alias: str, settings: PromotionSettings, signing: SigningSettings
) -> Decision:
    """Compare the challenger with the champion by the gate: a decision to promote or to refuse."""
    challenger = versions.aliased_version(decision.name, alias, decision.version)
    if challenger.tags.get(OUTCOME) == "rolled back":
        # The same scores would pass the same gate again.
        raise PromotionError(
            f"promotion: version {decision.version} of {decision.name} was rolled back; register "
            f"another one, or delete its tag {OUTCOME} to let it try again"
        )
    champion, opponent = None, f"its base, {challenger.tags.get('base_model', 'of unknown name')}"
    if decision.previous is not None:
        champion = versions.aliased_version(decision.name, CHAMPION, decision.previous)
        opponent = f"champion, version {decision.previous}"
    try:
        checks = _gate_checks(challenger, champion, alias, settings, signing)
    except VersionError as error:
        checks = (Check("files", "", False, error.message),)
    except Incomparable as error:
        checks = (Check("evidence", "", False, error.message),)
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


def _gate_checks(
    challenger: ModelVersion,
    champion: ModelVersion | None,
    alias: str,
    settings: PromotionSettings,
    signing: SigningSettings,
) -> tuple[Check, ...]:
    """The gate's checks of a challenger's evidence against that of its opponent (champion or base).

    Args:
        challenger: its alias is `alias`.
        champion: None compares with the challenger's base.
        alias: of the challenger.
        settings: the gate, and what it waives.
        signing: the configured keys.

    Raises:
        VersionError: a version's files are not those that were registered.
        Incomparable: the scores are of other weights, were not computed in the same way, or are of
            items that select.
    """
    with tempfile.TemporaryDirectory() as temporary:
        files = verified_files(challenger, Path(temporary) / "challenger", signing)
        _require_own_scores(files, alias)
        if selecting := files.evidence.selecting:
            named = ", ".join(f"{name} ({key})" for name, key in selecting.items())
            raise Incomparable(
                f"version {files.lineage.version} was scored on items that select weights or "
                f"settings: {named}; {_rescoring_hint(alias)}"
            )
        ours = files.tables()
        if champion is None:
            if files.evidence.base != files.lineage.base_fingerprint:
                raise Incomparable(
                    f"version {files.lineage.version} has scores of another base than the one that "
                    f"it was fine-tuned from; {_rescoring_hint(alias)}"
                )
            theirs = ours.base
        else:
            theirs = _champion_scores(champion, Path(temporary) / "champion", files, alias, signing)
        evidence = files.evidence
        return gate.judge(
            ours.version,
            theirs,
            evidence.overlaps,
            settings.gate,
            evidence.titles,
            ours.slices,
            settings.waive,
            _find_agreement(challenger, champion, settings, signing),
        )


def _find_agreement(
    challenger: ModelVersion,
    champion: ModelVersion | None,
    settings: PromotionSettings,
    signing: SigningSettings,
) -> Agreement | str:
    """The stored agreement of challenger and champion on requests, or a text why it is missing."""
    asking = [name for name, rule in settings.gate.rules.items() if rule.shadow is not None]
    if not asking:
        return ""
    instead = " and ".join(f"promotion.gate.rules.{name}" for name in asking)
    if champion is None:
        return f"there is no champion to compare with; set {instead} to null for the first version"
    # Of verified files.
    ours, theirs = (
        Lineage.from_registry(challenger).fingerprint,
        Lineage.from_registry(champion).fingerprint,
    )
    assert ours is not None and theirs is not None
    try:
        found = read_agreement(challenger, ours, theirs, signing)
    except ValueError as error:
        return f"{error}; `{COLLECT}` stores another one"
    if found is None:
        return (
            f"version {challenger.version} was not compared with version {champion.version} in "
            f"use: `{COLLECT}` does that and stores the result when it ends, or set {instead} to "
            "null"
        )
    return found


def _champion_scores(
    champion: ModelVersion,
    folder: Path,
    challenger: VerifiedFiles,
    alias: str,
    signing: SigningSettings,
) -> list[Score]:
    """The champion's score rows; an error unless these are comparable with the challenger's."""
    try:
        files = verified_files(champion, folder, signing)
        _require_own_scores(files, CHAMPION)
        if differences := challenger.evidence.differences(files.evidence):
            raise Incomparable(
                f"versions {challenger.lineage.version} and {files.lineage.version} were not "
                f"scored in the same way ({'; '.join(differences)}); {_rescoring_hint(CHAMPION)}, "
                f"registration.rescore={alias} the challenger"
            )
        return files.tables().version
    except VersionError as error:
        raise VersionError(
            f"{error.message}; or delete the alias '{CHAMPION}', and the challenger is compared "
            "with its base"
        ) from error


def _require_own_scores(files: VerifiedFiles, alias: str) -> None:
    """Refuse a version whose evidence was computed from weights other than the version's."""
    if files.evidence.version != files.lineage.fingerprint:
        raise Incomparable(
            f"version {files.lineage.version} has scores of other weights than its own, as those "
            f"of a registration.precision of fp16; {_rescoring_hint(alias)}"
        )


def _rescoring_hint(alias: str) -> str:
    """The part of an error message with the command that scores a version again."""
    return (
        f"`kedro run --pipeline=rescore --params registration.rescore={alias}` scores the version "
        f"with the alias '{alias}' on today's files"
    )


def _move_aliases(decision: Decision, aliases: Aliases) -> Decision:
    """Move `champion` and `previous`; contested if another process moved one of the aliases."""
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
    """Write a decision into the MLflow tags of its version."""
    client = mlflow.MlflowClient()
    for key, value in decision.tags().items():
        tag = (decision.name, str(decision.version), key, value)
        try:
            client.set_model_version_tag(*tag)
        except MlflowException:
            # Of two first writes at once, a server refuses the later one.
            client.set_model_version_tag(*tag)


def _now() -> str:
    """The present time in UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")
