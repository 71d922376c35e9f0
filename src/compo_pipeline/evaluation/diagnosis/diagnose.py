"""The diagnosis of a model: results by kind of change, weaknesses, and advice."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, get_args

import yaml

from compo_pipeline.benchmarks.foils import NAME as FOILS
from compo_pipeline.core import variants
from compo_pipeline.core.provenance import CommandOptions, kedro_run
from compo_pipeline.core.records import Caption
from compo_pipeline.core.seeding import drawn
from compo_pipeline.core.settings import SettingsError, leaves
from compo_pipeline.core.tables import Table, training_rows
from compo_pipeline.data.generators import GENERATORS, Recipe
from compo_pipeline.data.settings import DataSettings
from compo_pipeline.evaluation.comparison import FINE_TUNED, Difference, Estimate, Row
from compo_pipeline.evaluation.diagnosis.negatives import (
    AskedChanges,
    Negatives,
    RememberedParses,
    RuleSetting,
    Sample,
    asked_changes,
    rule_settings,
)
from compo_pipeline.evaluation.evaluate import Comparison
from compo_pipeline.generation.counterfactuals.contract import Opening
from compo_pipeline.generation.counterfactuals.settings import CounterfactualSettings
from compo_pipeline.language.changes import Change
from compo_pipeline.language.parsing import load_once, name_and_version, parse_by, parses_of
from compo_pipeline.methods.contract import ViewContext
from compo_pipeline.methods.registry import build
from compo_pipeline.methods.views import EpochViews, ViewSettings, annotated_contents

ADVISED = "advised"
"""Variant with the advised settings."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Diagnosis of a model: results by kind of foil, weak kinds, and advice.

    Attributes:
        kinds: results by kind; none where no foils were scored.
        weak: names of the kinds that are weaknesses, the worst first.
        first: weaknesses that the advice is for.
        recipe: an environment that teaches all of them.
        steps: settings to change, where no recipe does.
        captions: number of training captions whose negatives were counted.
        negatives: number of these.
    """

    kinds: tuple[KindResult, ...] = ()
    weak: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    recipe: Recipe | None = None
    steps: tuple[Step, ...] = ()
    captions: int = 0
    negatives: int = 0

    @property
    def sentence(self) -> str:
        """The diagnosis as text: weak kinds, and for which of them there is advice."""
        if not self.weak:
            return "No kind of change is missed and seldom asked for."
        found = f"Missed and seldom asked for: {join_kinds(self.weak)}."
        if self.recipe:
            command = f"kedro run --pipeline=train_eval --env={self.recipe.env}"
            return f"{found} {command} teaches {join_kinds(self.first)}: {self.recipe.gained}."
        if not self.steps:
            return f"{found} No rule of any method makes negatives of {join_kinds(self.first)}."
        return f"{found} The advice is for {join_kinds(self.first)}."

    @property
    def yaml(self) -> str:
        """The advised settings as an entry of `variants`, each with its reason in a comment."""
        lines = [f"{variants.KEY}:", f"  {variants.ALL}:", f"    {ADVISED}:"]
        for step in self.steps:
            value = yaml.safe_dump([step.value], default_flow_style=True, width=math.inf)
            # A variant names no method: the command does.
            hidden = "# " if step.key == "method" else ""
            entry = f"{hidden}{step.key}: {value.strip()[1:-1]}"
            lines += [f"      # {step.reason}", f"      {entry}"]
        return "\n".join(lines)

    def command(self, options: CommandOptions, values: Mapping[str, Any]) -> str:
        """Command line that trains with the advised settings, once their entry is in `variants`.

        Args:
            options: options of the run.
            values: further parameters, by dotted key.
        """
        advice = {step.key: step.value for step in self.steps}
        given = {key: value for key, value in leaves(options.params) if key not in advice}
        own = str(given.get("variant", "default"))
        variant = ADVISED if own == "default" else f"{own}{variants.PLUS}{ADVISED}"
        method = {"method": advice["method"]} if "method" in advice else {}
        params = {**given, **values, **method, "variant": variant}
        return kedro_run("train_eval", options.env, params)


def diagnose(comparison: Comparison, run: TrainingRun, *, model: str = FINE_TUNED) -> Diagnosis:
    """Diagnose a model: which kinds of change it misses, and which settings to change.

    Args:
        comparison: comparison of the model with its base, the first one. The rows of foils count.
        run: training run of the model, or one that could follow.
        model: key of the model, which may be that of the base.
    """
    scored, base = foil_rows(comparison.rows), comparison.reference
    if not scored:
        return Diagnosis()
    asked = run.asked
    kinds = [kind_result(row, base, model, asked) for row in scored]
    weak = weaknesses(kinds, asked)
    first = worst(weak)
    missed = {one.kind for one in first}
    recipe = next((one for one in run.recipes if missed and missed <= set(one.kinds)), None)
    return Diagnosis(
        tuple(kinds),
        tuple(one.kind for one in weak),
        tuple(one.kind for one in first),
        recipe,
        advise(first, run, run.rules()) if first and recipe is None else (),
        asked.captions,
        asked.negatives,
    )


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


LEAST_WRONG = 10.0
"""Per cent of the items of a kind that a model has wrong at least, for a weakness."""
LEAST_CORRECTED = 0.5
"""Share of the base's errors of a kind that a model without a weakness may have corrected."""
LEAST_ASKED = 0.5
"""A kind is seldom asked for below this share of the captions that are asked for the kind that is
asked for most."""

RULE = (
    f"A weakness is missed (accuracy below {100 - LEAST_WRONG:.0f}%, less than "
    f"{LEAST_CORRECTED:.0%} of the base's errors corrected, both by their intervals) and seldom "
    f"asked for (of at most {LEAST_ASKED:.0%} as many captions as the kind that is asked for most)."
)


@dataclass(frozen=True, slots=True)
class KindResult:
    """Result on one kind of foil: accuracies of base and model in per cent, and the difference.

    Attributes:
        kind: name of the kind.
        items: number of items.
        base: accuracy of the base.
        model: accuracy of the model.
        gain: difference of the two; None where the model is the base.
        change: change that the kind makes. None for kinds whose negatives are not counted.
        asked: share of the training captions with a negative of this kind.
    """

    kind: str
    items: int
    base: Estimate
    model: Estimate
    gain: Difference | None
    change: Change | None
    asked: float

    @property
    def corrected(self) -> tuple[float, float, float]:
        """Net share of the base's errors that the model corrects, with its interval."""
        wrong = 100.0 - self.base.value
        if self.gain is None or wrong <= 0:
            return (0.0, 0.0, 0.0) if wrong > 0 else (1.0, 1.0, 1.0)
        return self.gain.value / wrong, self.gain.low / wrong, self.gain.high / wrong

    @property
    def model_errors(self) -> float:
        """Error rate of the model on the items, in per cent."""
        return 100.0 - self.model.value


def foil_rows(rows: Iterable[Row]) -> list[Row]:
    """The rows of a comparison that are about one kind of foil each."""
    return [row for row in rows if row.benchmark == FOILS and not row.averaged and not row.slice]


def kind_result(row: Row, base: str, model: str, asked: AskedChanges) -> KindResult:
    """Build the result of one kind of foil from a row of a comparison.

    Args:
        row: row of a comparison.
        base: key of the base in the row's values.
        model: key of the model.
        asked: changes that the model's training asks for.
    """
    changes: dict[str, Change] = {kind: kind for kind in get_args(Change)}
    change = changes.get(row.name)
    return KindResult(
        row.name,
        row.items,
        row.values[base],
        row.values[model],
        row.difference_of(model) if model != base else None,
        change,
        asked.share(change) if change else 0.0,
    )


def weaknesses(results: Sequence[KindResult], asked: AskedChanges) -> list[KindResult]:
    """Kinds of change that a model misses and its training seldom has negatives of, worst first.

    A kind is missed if the interval of its accuracy is below 90%, and that of the share of the
    base's errors that the model corrects below a half. It is seldom asked for if at most half as
    many captions have such a negative as have one of the kind that most captions have.
    """
    most = max((asked.share(kind) for kind in get_args(Change)), default=0.0)
    found = [
        one
        for one in results
        if one.change is not None
        and one.model.high < 100.0 - LEAST_WRONG
        and one.corrected[2] < LEAST_CORRECTED
        and one.asked <= LEAST_ASKED * most
    ]
    return sorted(found, key=lambda one: one.model.value)


def worst(weak: Sequence[KindResult]) -> list[KindResult]:
    """The weaknesses with at least half as many errors as the worst one."""
    return [one for one in weak if 2 * one.model_errors >= weak[0].model_errors]
