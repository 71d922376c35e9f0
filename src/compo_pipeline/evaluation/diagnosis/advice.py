"""Advice of the diagnosis: settings whose hard negatives have the changes that a model misses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from compo_pipeline.core.records import Caption
from compo_pipeline.core.seeding import drawn
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.core.tables import Table, training_rows
from compo_pipeline.data.generators import GENERATORS, Recipe
from compo_pipeline.data.settings import DataSettings
from compo_pipeline.evaluation.diagnosis.negatives import (
    AskedChanges,
    Negatives,
    RememberedParses,
    RuleSetting,
    Sample,
    asked_changes,
    rule_settings,
)
from compo_pipeline.evaluation.diagnosis.weaknesses import KindResult
from compo_pipeline.generation.counterfactuals.contract import Opening
from compo_pipeline.generation.counterfactuals.settings import CounterfactualSettings
from compo_pipeline.language.changes import Change
from compo_pipeline.language.parsing import load_once, name_and_version, parse_by, parses_of
from compo_pipeline.methods.contract import ViewContext
from compo_pipeline.methods.registry import build
from compo_pipeline.methods.views import EpochViews, ViewSettings, annotated_contents

_VIEWS = 2_000  # that are read at most
_CAPTIONS = 300  # of the training, on which rules are measured, at most


@dataclass(frozen=True, slots=True)
class Step:
    """A setting to change: its key, the advised value and the reason."""

    key: str
    value: Any
    reason: str


@dataclass(frozen=True)
class TrainingRun:
    """A training run, by the settings that decide the kinds of change in its negatives.

    Attributes:
        method: name of the method.
        count: the kinds of change that its negatives ask for in each pass.
        rules: the settings of all methods that list rules of hard negatives.
        from_table: whether the negatives are those of a table of others, and not made by rules.
        recipes: environments that teach kinds of change, where the data are generated.
    """

    method: str
    count: Callable[[], AskedChanges]
    rules: Callable[[], Iterable[RuleSetting]] = tuple
    from_table: bool = False
    recipes: tuple[Recipe, ...] = ()

    @cached_property
    def asked(self) -> AskedChanges:
        """How many captions of one training pass have hard negatives of each kind of change."""
        return self.count()


def describe_training(
    views: Path,
    valid_captions: Sequence[Caption],
    method: str,
    method_settings: Mapping[str, Any],
    view_settings: ViewSettings,
    data: DataSettings,
    generator_settings: Any,
    counterfactuals: CounterfactualSettings,
    language_model: str,
    state: str,
) -> TrainingRun:
    """A model's training, by the settings that decide the kinds of change in its negatives.

    They are counted, and the rules of other methods tried, when they are asked for: this takes
    seconds.
    """
    built = build(method, method_settings["views"], method_settings["objective"])
    parser = partial(parses_of, language_model)

    def count() -> AskedChanges:
        rows = drawn(EpochViews(views).epoch(0), _VIEWS, "diagnosis", "views")
        return asked_changes([Negatives.from_view(row) for row in rows], parser)

    def rules() -> Iterable[RuleSetting]:
        every = training_rows(valid_captions, view_settings.split)
        captions = drawn(every, _CAPTIONS, "diagnosis", "captions")
        sentences = (
            (row.sample_id, place, text)
            for row in captions
            for place, text in enumerate(row.sentences)
        )
        language = name_and_version(load_once(language_model))
        context = ViewContext.from_parses(parse_by(language_model, sentences), language, 0, {})
        sample = Sample(captions, context, RememberedParses(parser))
        rows, folders = Table.of(captions, Caption), (data.root, Path(state))
        opening = Opening(counterfactuals.seed, rows, *folders, generator_settings)
        return rule_settings({method: method_settings["views"]}, counterfactuals, opening, sample)

    recipes: Iterable[Any] = ()
    if data.generator is not None and not data.sources:
        recipes = GENERATORS[data.generator.format].recipes()
    return TrainingRun(
        method,
        count,
        rules,
        from_table="negatives" in annotated_contents(built, view_settings.from_table),
        recipes=tuple(Recipe(*each) for each in recipes),
    )


class _Choice(NamedTuple):
    """Edit rules chosen for one YAML setting, and counts of the kinds of change that they make."""

    setting: RuleSetting
    rules: tuple[str, ...]
    asked: AskedChanges

    def value(self, kinds: Sequence[Change], method: str) -> tuple[float, float, bool, int]:
        """Sort key of a choice of rules, largest for the best choice.

        Shares of the captions with an image of a negative, and with a negative, of the kind that
        has fewest; then whether it is the run's method, and the fewer negatives in all.
        """
        shown, asked = (
            min(map(share, kinds)) for share in (self.asked.shown_share, self.asked.share)
        )
        return shown, asked, self.setting.method == method, -self.asked.negatives


def advise(
    weak: Sequence[KindResult], run: TrainingRun, settings: Iterable[RuleSetting]
) -> tuple[Step, ...]:
    """Settings to change so that training has negatives of the kinds of change the model misses.

    Of each setting the rules that ask most for one of the kinds are added to those that it has. The
    best setting asks most captions for the kind that it asks for least: first by images of
    negatives, since a negative that no image shows can be recognised by its text alone.

    Args:
        weak: the kinds, at least one.
        run: training run to advise on.
        settings: settings of all methods.

    Returns:
        Nothing if no setting has rules for all of the kinds.
    """
    kinds = [one.change for one in weak if one.change is not None]
    choices = [_choose_rules(kinds, setting) for setting in settings]
    fit = [choice for choice in choices if choice and choice.value(kinds, run.method)[1] > 0]
    if not fit:
        return ()
    best = max(fit, key=lambda choice: choice.value(kinds, run.method))
    return tuple(_steps(kinds, run, best))


def _choose_rules(weak: Sequence[Change], setting: RuleSetting) -> _Choice | None:
    """A setting's rules with the best rule for each weak kind, or None if they are refused."""
    asked = {rule: _changes_by_rules(setting, (rule,)) for rule in setting.allowed}
    alone = {rule: found for rule, found in asked.items() if found is not None}
    if not alone:
        return None
    best = [max(alone, key=lambda rule: alone[rule].share(kind)) for kind in weak]
    rules = tuple(dict.fromkeys((*best, *setting.current)))
    together = _changes_by_rules(setting, rules)
    return _Choice(setting, rules, together) if together is not None else None


def _changes_by_rules(setting: RuleSetting, rules: tuple[str, ...]) -> AskedChanges | None:
    """Count the changes that rules make in training, or None if the setting refuses the rules."""
    try:
        return setting.asked(rules)
    except SettingsError:
        return None


def _steps(weak: Sequence[Change], run: TrainingRun, choice: _Choice) -> Iterator[Step]:
    """Yield the advice to change the method and the rules of its negatives."""
    setting, asked = choice.setting, choice.asked
    if setting.method != run.method:
        shown = min(map(asked.shown_share, weak))
        images = f", with images of {shown:.0%}" if shown else ""
        reason = f"its negatives ask {min(map(asked.share, weak)):.0%} of the captions{images}"
        yield Step("method", setting.method, f"{reason}, for {join_kinds(weak)}")
    if run.from_table:
        yield Step("views.from_table.file", None, "beside a table, rules make no negatives")
    if choice.rules != setting.current or run.from_table:
        before, after = (
            ", ".join(f"{_kind_name(kind)} {one.share(kind):.0%}" for kind in weak)
            for one in (run.asked, asked)
        )
        reason = f"captions with such a negative: {after}, in this run {before}"
        yield Step(setting.key, list(choice.rules), reason)


def _kind_name(kind: str) -> str:
    """The name of a kind of change, with spaces in place of underscores."""
    return kind.replace("_", " ")


def join_kinds(kinds: Iterable[str]) -> str:
    """The names of kinds of change as one text, separated by commas."""
    return ", ".join(map(_kind_name, kinds))
