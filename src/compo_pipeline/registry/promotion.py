"""Moving the alias `champion`: to a challenger that passes the gate, or back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, Protocol

from click import ClickException

from compo_pipeline.evaluation.contamination import Overlap
from compo_pipeline.evaluation.settings import Bootstrap
from compo_pipeline.records import Score
from compo_pipeline.registry import gate, tracking
from compo_pipeline.registry.aliases import CHAMPION, PREVIOUS, Aliases, Contested, alone
from compo_pipeline.registry.copying import CopySettings
from compo_pipeline.registry.decision import OUTCOME, ROLLED_BACK, Decision
from compo_pipeline.registry.gate import Check, Gate
from compo_pipeline.registry.version_scores import ScoresMissing

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion


class PromotionError(ClickException, RuntimeError):
    """An alias stays where it is; the message says why."""


@dataclass(frozen=True, slots=True)
class PromotionSettings:
    """The YAML key `promotion`.

    Attributes:
        captions: the table whose captions retrieval asks for.
        gate: what a challenger must show.
        action: promote the challenger, roll back to the previous champion, or copy a version to
            another registry.
        dry_run: decide and report, and leave the registry as it is.
        reevaluate: score versions anew whose scores are missing or of other making.
        settle: seconds after which a moved alias of a server is read again.
        copy: what is copied where.
    """

    captions: str
    gate: Gate
    action: Literal["promote", "rollback", "copy"] = "promote"
    dry_run: bool = False
    reevaluate: bool = True
    settle: float = 2.0
    copy: CopySettings = field(default_factory=CopySettings)


class Scorer(Protocol):
    """Gives the scores of a version and of the base that it was fine-tuned from."""

    @property
    def titles(self) -> Mapping[str, str]:
        """Of benchmarks that are not the official ones."""

    def of(self, version: ModelVersion) -> list[Score]:
        """The version's scores."""

    def base_of(self, version: ModelVersion) -> list[Score]:
        """Its base's scores."""

    def overlaps(self, version: ModelVersion) -> list[Overlap]:
        """What its training shares with what is scored, where somebody has looked."""


def promote(
    name: str, alias: str, scorer: Scorer, settings: PromotionSettings, bootstrap: Bootstrap
) -> Decision:
    """Hold the challenger against the champion, or its base while there is none, and decide.

    Args:
        name: the registered model.
        alias: of the challenger.
        scorer: where scores come from.
        settings: gate, dry run.
        bootstrap: of the intervals.

    Raises:
        PromotionError: there is no challenger, or it was champion and was rolled back.
    """
    with _deciding(name, settings) as held:
        number, former = held.version(alias), held.version(CHAMPION)
        if number is None:
            raise PromotionError(
                f"promotion: no version of {name} has the alias '{alias}'; register one, or name "
                "another in registration.alias"
            )
        decided = Decision(
            name=name,
            version=number,
            outcome="unchanged",
            reason="It is the champion already.",
            former=former,
            opponent="",
            gate=settings.gate.identity(bootstrap),
            at=_now(),
            dry_run=settings.dry_run,
        )
        if number == former:
            return decided
        _refuse_rolled_back(name, number)
        decided = _judged(decided, scorer, settings, bootstrap)
        if settings.dry_run:
            return decided
        # First, so that no kill leaves a champion without its record.
        _tag(decided)
        if decided.outcome == "promoted":
            decided = _moved(decided, held)
        return decided


def roll_back(name: str, settings: PromotionSettings) -> Decision:
    """Give the alias `champion` back to the version that had it before.

    `previous` is taken away: rolling back twice must not restore what was rolled back.

    Raises:
        PromotionError: there is no champion, or none before it.
    """
    with _deciding(name, settings) as held:
        champion, previous = held.version(CHAMPION), held.version(PREVIOUS)
        if champion is None or previous is None or champion == previous:
            raise PromotionError(
                f"promotion.action: there is nothing to roll back in {name}: champion is version "
                f"{champion or 'none'}, previous is version {previous or 'none'}"
            )
        decided = Decision(
            name=name,
            version=champion,
            outcome=ROLLED_BACK,
            reason=f"The champion is version {previous} again.",
            former=champion,
            opponent=f"version {previous}",
            gate="",
            at=_now(),
            dry_run=settings.dry_run,
        )
        if settings.dry_run:
            return decided
        # First: a version that went back without its tag would pass the same gate again.
        _tag(decided)
        try:
            held.move(CHAMPION, champion, previous)
            held.remove(PREVIOUS)
        except Contested as error:
            # The tag stays: wherever the alias is now, this version was meant to go.
            decided = replace(decided, outcome="contested", reason=error.message)
        return decided


@contextmanager
def _deciding(name: str, settings: PromotionSettings) -> Iterator[Aliases]:
    """The aliases of a model; in a local store nobody else decides meanwhile."""
    import mlflow

    tracking.registered_model(name)
    uri = mlflow.get_registry_uri()
    with alone(uri):
        yield Aliases(name, settle=0 if tracking.local_file(uri) else settings.settle)


def _judged(
    undecided: Decision, scorer: Scorer, settings: PromotionSettings, bootstrap: Bootstrap
) -> Decision:
    challenger = _version(undecided.name, undecided.version)
    former = undecided.former
    opponent = f"its base, {challenger.tags.get('base_model', 'of unknown name')}"
    if former is not None:
        opponent = f"champion, version {former}"
    try:
        ours = scorer.of(challenger)
        if former is None:
            theirs = scorer.base_of(challenger)
        else:
            theirs = scorer.of(_version(undecided.name, former))
    except ScoresMissing as error:
        checks: tuple[Check, ...] = (Check("scores", "", False, error.message),)
    else:
        known = scorer.overlaps(challenger)
        checks = gate.judge(ours, theirs, known, settings.gate, bootstrap, scorer.titles)
    failed = [f"{check.rule} ({check.subject})" for check in checks if not check.passed]
    return replace(
        undecided,
        outcome="refused" if failed else "promoted",
        reason=f"Failed: {'; '.join(failed)}." if failed else "It passed every check.",
        opponent=opponent,
        checks=checks,
    )


def _moved(decided: Decision, held: Aliases) -> Decision:
    try:
        held.expect(CHAMPION, decided.former, "after the versions were compared")
        # First, so that a kill between the two leaves the way back open.
        if decided.former is not None:
            held.move(PREVIOUS, held.version(PREVIOUS), decided.former)
        held.move(CHAMPION, decided.former, decided.version)
    except Contested as error:
        decided = replace(decided, outcome="contested", reason=error.message)
        _tag(decided)
    return decided


def _version(name: str, number: int) -> ModelVersion:
    import mlflow

    return mlflow.MlflowClient().get_model_version(name, str(number))


def _refuse_rolled_back(name: str, number: int) -> None:
    """The same scores would pass the same gate again."""
    if _version(name, number).tags.get(OUTCOME) == ROLLED_BACK:
        raise PromotionError(
            f"promotion: version {number} of {name} was rolled back; register another one, or "
            f"delete its tag {OUTCOME} to let it try again"
        )


def _tag(decided: Decision) -> None:
    import mlflow

    client: Any = mlflow.MlflowClient()
    for key, value in decided.tags().items():
        client.set_model_version_tag(decided.name, str(decided.version), key, value)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
