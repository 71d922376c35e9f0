"""Nodes of the part `training_negatives`; what takes seconds is computed when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from compo_pipeline.configuration.settings import parse
from compo_pipeline.counterfactuals.contract import Opening
from compo_pipeline.counterfactuals.settings import CounterfactualSettings
from compo_pipeline.datasets.generators import GENERATORS, Recipe
from compo_pipeline.datasets.settings import DataSettings
from compo_pipeline.diagnosis.advice import TrainingRun
from compo_pipeline.diagnosis.negatives import (
    AskedChanges,
    Negatives,
    RememberedParses,
    asked_changes,
)
from compo_pipeline.diagnosis.options import RuleSetting, Sample, rule_settings
from compo_pipeline.language.parsing import load_once, name_and_version, parse_by, parses_of
from compo_pipeline.methods.contract import ViewContext
from compo_pipeline.methods.registry import build
from compo_pipeline.methods.views import FROM_TABLE, EpochViews, annotated_contents
from compo_pipeline.run.seeding import rng
from compo_pipeline.storage.annotations import AnnotationSettings
from compo_pipeline.storage.records import Caption
from compo_pipeline.storage.tables import Splits, Table, training_rows
from compo_pipeline.training.settings import TrainingSettings

VIEWS = 2_000
"""Views that are read at most."""
CAPTIONS = 300
"""Training captions on which rules are measured, at most."""


def describe_training(
    views: Path,
    language_model: str,
    method: str,
    method_settings: Mapping[str, Any],
    from_table: Mapping[str, Any],
    training: TrainingSettings,
    data: DataSettings,
) -> TrainingRun:
    """Settings of a model's training, and a function that counts its negatives' kinds."""
    built = build(method, method_settings["views"], method_settings["objective"])
    table = parse(AnnotationSettings, from_table, FROM_TABLE)
    return TrainingRun(
        method,
        training.epochs,
        partial(_count_changes, views, language_model),
        trains_images="image" in built.trains,
        caches_features=training.cache_features,
        frozen=training.frozen,
        ratio=training.wise_ft.before_choice,
        from_table="negatives" in annotated_contents(built, table),
        recipes=_recipes(data),
    )


def _recipes(data: DataSettings) -> tuple[Recipe, ...]:
    """Recipes of the data's generator; none without one, or for several sources."""
    if data.sources or data.generator is None:
        return ()
    return tuple(Recipe(*each) for each in GENERATORS[data.generator.format].recipes())


def _count_changes(views: Path, language_model: str) -> AskedChanges:
    """Count the kinds of change in the negatives of a random sample of epoch 0's views."""
    rows = EpochViews(views).epoch(0)
    drawn = sorted(rng("diagnosis", "views").sample(range(len(rows)), min(VIEWS, len(rows))))
    negatives = [Negatives.from_view(rows[place]) for place in drawn]
    return asked_changes(negatives, partial(parses_of, language_model))


def choose_sample(
    valid_captions: Sequence[Caption], split: Splits, language_model: str
) -> Callable[[], Sample]:
    """Return a function that draws a random sample of training captions, with their parses."""
    return cache(partial(_draw_sample, valid_captions, split, language_model))


def _draw_sample(valid_captions: Sequence[Caption], split: Splits, language_model: str) -> Sample:
    """Draw random training captions and parse them."""
    rows = training_rows(valid_captions, split)
    drawn = sorted(rng("diagnosis", "captions").sample(range(len(rows)), min(CAPTIONS, len(rows))))
    captions = [rows[place] for place in drawn]
    sentences = (
        (row.sample_id, place, text) for row in captions for place, text in enumerate(row.sentences)
    )
    language = name_and_version(load_once(language_model))
    context = ViewContext.from_parses(parse_by(language_model, sentences), language, 0, {})
    return Sample(captions, context, RememberedParses(partial(parses_of, language_model)))


def choose_opening(
    sample: Callable[[], Sample],
    counterfactuals: CounterfactualSettings,
    root: Path,
    state: str,
    generator_settings: Mapping[str, Any],
) -> Callable[[], Opening]:
    """Return a function that makes the caption editor's arguments for the sampled captions."""

    def opening() -> Opening:
        captions = Table.of(sample().captions, Caption)
        return Opening(counterfactuals.seed, captions, Path(root), Path(state), generator_settings)

    return opening


def list_rule_settings(
    sample: Callable[[], Sample],
    opening: Callable[[], Opening],
    counterfactuals: CounterfactualSettings,
    method: str,
    method_views: Mapping[str, Any],
) -> Callable[[], Iterable[RuleSetting]]:
    """Return a function that lists the negative rules of each method, with their settings.

    Methods other than the run's have their defaults.
    """
    return lambda: rule_settings({method: method_views}, counterfactuals, opening(), sample())
