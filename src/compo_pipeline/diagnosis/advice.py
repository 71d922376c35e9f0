"""What to change so that training asks for the kinds of change that a model misses."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from compo_pipeline.configuration.settings import SettingsError
from compo_pipeline.diagnosis.negatives import AskedChanges
from compo_pipeline.diagnosis.options import RuleSetting
from compo_pipeline.language.changes import Change

MOST_TIMES = 4
"""At most so many times the passes of a run are advised."""


class Step(NamedTuple):
    """A value to set, and why."""

    key: str
    value: Any
    reason: str


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """What a model was trained with; `asked` in each of its epochs."""

    method: str
    epochs: int
    asked: AskedChanges


class _Choice(NamedTuple):
    """Rules for a setting, and what they ask."""

    setting: RuleSetting
    rules: tuple[str, ...]
    asked: AskedChanges

    def value(self, kinds: Sequence[Change], method: str) -> tuple[float, float, bool, int]:
        """The larger, the better: shares of the captions with an image of a negative, and with a
        negative, of the kind that has fewest; then whether it is the run's method, and the fewer
        negatives in all.
        """
        shown, asked = (
            min(map(share, kinds)) for share in (self.asked.shown_share, self.asked.share)
        )
        return shown, asked, self.setting.method == method, -self.asked.negatives


def advise(
    weak: Sequence[Change], run: TrainingRun, settings: Iterable[RuleSetting]
) -> tuple[Step, ...]:
    """The settings that make training ask for kinds of change.

    Of each setting the rules that ask most for one of the kinds are added to those that it has. The
    best setting asks most captions for the kind that it asks for least: first by images of
    negatives, since a negative that no image shows can be told by its text alone. The passes make
    up for a kind that is asked of fewer captions than the run asked for the kind that it asked for
    most.

    Args:
        weak: the kinds, at least one.
        run: what was trained.
        settings: of all methods.

    Returns:
        Nothing if no setting has rules for all of the kinds.
    """
    choices = [_choice(weak, setting) for setting in settings]
    fit = [choice for choice in choices if choice and choice.value(weak, run.method)[1] > 0]
    if not fit:
        return ()
    return tuple(_steps(weak, run, max(fit, key=lambda choice: choice.value(weak, run.method))))


def _choice(weak: Sequence[Change], setting: RuleSetting) -> _Choice | None:
    """The rules of a setting that ask most for each kind, with those that it has; None where it
    cannot have them together.
    """
    alone = {rule: setting.asked((rule,)) for rule in setting.allowed}
    best = [max(alone, key=lambda rule: alone[rule].share(kind)) for kind in weak]
    rules = tuple(dict.fromkeys((*best, *setting.current)))
    try:
        return _Choice(setting, rules, setting.asked(rules))
    except SettingsError:  # DAC's takes one
        return None


def _steps(weak: Sequence[Change], run: TrainingRun, choice: _Choice) -> Iterator[Step]:
    setting, asked = choice.setting, choice.asked
    before, after = (
        ", ".join(f"{kind.replace('_', ' ')} {one.share(kind):.0%}" for kind in weak)
        for one in (run.asked, asked)
    )
    if setting.method != run.method:
        shown = min(map(asked.shown_share, weak))
        images = f", with images of {shown:.0%}" if shown else ""
        reason = f"its negatives ask {min(map(asked.share, weak)):.0%} of the captions{images}"
        yield Step("method", setting.method, f"{reason}, for {_words(weak)}")
    if choice.rules != setting.current:
        reason = f"captions with such a negative: {after}, in this run {before}"
        yield Step(setting.key, list(choice.rules), reason)
    most = max(run.asked.asked, key=run.asked.share, default=None)
    if most is not None:
        least = min(weak, key=asked.share)
        times = min(run.asked.share(most) / asked.share(least), MOST_TIMES)
        if times > 1:
            reason = (
                f"{least.replace('_', ' ')} is asked of {asked.share(least):.0%} of the captions "
                f"then, {most.replace('_', ' ')} was of {run.asked.share(most):.0%}"
            )
            yield Step("training.epochs", math.ceil(run.epochs * times), reason)


def _words(kinds: Sequence[Change]) -> str:
    return ", ".join(kind.replace("_", " ") for kind in kinds)
