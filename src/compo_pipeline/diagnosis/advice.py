"""What to change so that training asks for the kinds of change that a model misses."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from compo_pipeline.configuration.settings import SettingsError
from compo_pipeline.counterfactuals.contract import Opening
from compo_pipeline.counterfactuals.settings import CounterfactualSettings
from compo_pipeline.datasets.generators import GENERATORS, Recipe
from compo_pipeline.datasets.settings import DataSettings
from compo_pipeline.diagnosis.negatives import (
    AskedChanges,
    Negatives,
    RememberedParses,
    asked_changes,
)
from compo_pipeline.diagnosis.options import RuleSetting, Sample, rule_settings
from compo_pipeline.diagnosis.weaknesses import KindResult
from compo_pipeline.language.changes import Change
from compo_pipeline.language.parsing import load_once, name_and_version, parse_by, parses_of
from compo_pipeline.methods.contract import ViewContext
from compo_pipeline.methods.registry import build
from compo_pipeline.methods.views import EpochViews, ViewSettings, annotated_contents
from compo_pipeline.run.seeding import drawn
from compo_pipeline.storage.records import Caption
from compo_pipeline.storage.tables import Table, training_rows
from compo_pipeline.training.settings import TRUNK, TrainingSettings

MOST_TIMES = 4
"""At most so many times the passes of a run are advised."""
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
    """A training run: method, epochs, kinds of change in its negatives, trained parts of the model.

    Attributes:
        method: its name.
        epochs: passes.
        count: the kinds of change that its negatives ask for in each pass.
        rules: the settings of all methods that list rules of hard negatives.
        trains_images: whether the image tower trains.
        caches_features: whether images are embedded once, before training.
        frozen: parts of the towers that do not train.
        ratio: share of the fine-tuned weights in the mixture with those of the base.
        from_table: whether the negatives are those of a table of others, and not made by rules.
        recipes: environments that teach kinds of change, where the data are generated.
    """

    method: str
    epochs: int
    count: Callable[[], AskedChanges]
    rules: Callable[[], Iterable[RuleSetting]] = tuple
    trains_images: bool = True
    caches_features: bool = False
    frozen: tuple[str, ...] = ()
    ratio: float = 1.0
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
    training: TrainingSettings,
    data: DataSettings,
    generator_settings: Any,
    counterfactuals: CounterfactualSettings,
    language_model: str,
    state: str,
) -> TrainingRun:
    """A model's training, by what decides the kinds of change in its negatives.

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
        training.epochs,
        count,
        rules,
        trains_images="image" in built.trains,
        caches_features=training.cache_features,
        frozen=training.frozen,
        ratio=training.wise_ft.before_choice,
        from_table="negatives" in annotated_contents(built, view_settings.from_table),
        recipes=tuple(Recipe(*each) for each in recipes),
    )


class _Choice(NamedTuple):
    """Edit rules chosen for one YAML setting, and counts of the kinds of change that they make."""

    setting: RuleSetting
    rules: tuple[str, ...]
    asked: AskedChanges

    def value(self, kinds: Sequence[Change], method: str) -> tuple[float, float, bool, int]:
        """Sort key of a choice of rules; the best choice has the largest.

        Shares of the captions with an image of a negative, and with a negative, of the kind that
        has fewest; then whether it is the run's method, and the fewer negatives in all.
        """
        shown, asked = (
            min(map(share, kinds)) for share in (self.asked.shown_share, self.asked.share)
        )
        return shown, asked, self.setting.method == method, -self.asked.negatives


def advise(
    weak: Sequence[KindResult],
    results: Iterable[KindResult],
    run: TrainingRun,
    settings: Iterable[RuleSetting],
) -> tuple[Step, ...]:
    """Settings to change so that training has negatives of the kinds of change the model misses.

    Of each setting the rules that ask most for one of the kinds are added to those that it has. The
    best setting asks most captions for the kind that it asks for least: first by images of
    negatives, since a negative that no image shows can be recognised by its text alone. The passes
    are what the gain of the kind that the run asked for most says (`_epoch_steps`).

    What the base only guesses is in neither of its embeddings: the image tower trains too where the
    negatives have images, and how much of the base's weights is mixed in is chosen after training.

    Args:
        weak: the kinds, at least one.
        results: of all kinds.
        run: what was trained.
        settings: of all methods.

    Returns:
        Nothing if no setting has rules for all of the kinds.
    """
    kinds = [one.change for one in weak if one.change is not None]
    choices = [_choose_rules(kinds, setting) for setting in settings]
    fit = [choice for choice in choices if choice and choice.value(kinds, run.method)[1] > 0]
    if not fit:
        return ()
    best = max(fit, key=lambda choice: choice.value(kinds, run.method))
    guessed = [one.change for one in weak if one.change is not None and one.at_chance]
    return (
        *_method_steps(kinds, run, best),
        *_epoch_steps(weak, results, run, best.asked),
        *(_weight_steps(guessed, run, best) if guessed else ()),
    )


def _choose_rules(weak: Sequence[Change], setting: RuleSetting) -> _Choice | None:
    """A setting's rules with the best rule for each weak kind; None if the setting refuses them."""
    asked = {rule: _changes_by_rules(setting, (rule,)) for rule in setting.allowed}
    alone = {rule: found for rule, found in asked.items() if found is not None}
    if not alone:
        return None
    best = [max(alone, key=lambda rule: alone[rule].share(kind)) for kind in weak]
    rules = tuple(dict.fromkeys((*best, *setting.current)))
    together = _changes_by_rules(setting, rules)
    return _Choice(setting, rules, together) if together is not None else None


def _changes_by_rules(setting: RuleSetting, rules: tuple[str, ...]) -> AskedChanges | None:
    """Count the changes that rules make in training; None if the setting refuses the rules."""
    try:
        return setting.asked(rules)
    except SettingsError:
        return None


def _method_steps(weak: Sequence[Change], run: TrainingRun, choice: _Choice) -> Iterator[Step]:
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


def _epoch_steps(
    weak: Sequence[KindResult],
    results: Iterable[KindResult],
    run: TrainingRun,
    asked: AskedChanges,
) -> Iterator[Step]:
    """Yield the advice to raise the number of epochs, if the weak kinds of change need more epochs.

    The passes bring the kinds from the base's accuracy to one that is no weakness.

    The log odds of a right answer are taken to grow with the number of captions that were asked, as
    they did for the kind that the run asked for most. Where that kind has gained nothing, the kinds
    are asked as often as it was.
    """
    most = max(run.asked.asked, key=run.asked.share, default=None)
    if most is None:
        return
    before = run.asked.share(most)
    taught = next((one for one in results if one.change == most), None)
    gained = taught.log_odds(taught.model) - taught.log_odds(taught.base) if taught else 0.0
    times, least = max(
        ((one.missing_log_odds / gained if gained > 0 else 1.0) * before / asked.share(kind), kind)
        for one in weak
        if (kind := one.change) is not None
    )
    epochs = math.ceil(run.epochs * min(times, MOST_TIMES))
    if epochs > run.epochs:
        reason = f"{_kind_name(least)} is asked of {asked.share(least):.0%} of the captions then"
        if taught and gained > 0:
            reason += (
                f"; asked of {before:.0%}, {_kind_name(most)} went from {taught.base.value:.0f} to "
                f"{taught.model.value:.0f}% in {run.epochs} passes"
            )
        yield Step("training.epochs", epochs, reason)


def _weight_steps(guessed: Sequence[Change], run: TrainingRun, choice: _Choice) -> Iterator[Step]:
    """Yield advice on which weights to train, and on how to mix trained weights with the base's."""
    method, why = choice.setting.method, f"the base only guesses {join_kinds(guessed)}"
    if min(map(choice.asked.shown_share, guessed)) > 0 and not (
        run.trains_images and method == run.method
    ):
        yield Step(
            f"{method}.objective.trains", ["image", "text"], f"{why}: its images must differ too"
        )
        if run.caches_features and TRUNK not in run.frozen:
            reason = "of the image tower the projection trains, so images are still embedded once"
            yield Step("training.frozen", [*run.frozen, TRUNK], reason)
    if run.ratio < 1:
        reason = (
            f"{why}: the more of its weights is mixed in, the less of what is learnt is left; "
            "items that are not reported choose how much, after training"
        )
        yield Step("training.wise_ft.ratio", "auto", reason)


def _kind_name(kind: str) -> str:
    """The name of a kind of change, with spaces in place of underscores."""
    return kind.replace("_", " ")


def join_kinds(kinds: Iterable[str]) -> str:
    """The names of kinds of change as one text, separated by commas."""
    return ", ".join(map(_kind_name, kinds))
