"""Nodes of the pipeline `diagnosis`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from compo_pipeline.benchmarks.loading import gather_foils
from compo_pipeline.benchmarks.settings import BenchmarksSettings
from compo_pipeline.configuration.settings import SettingsError
from compo_pipeline.counterfactuals.contract import Opening
from compo_pipeline.counterfactuals.settings import CounterfactualSettings
from compo_pipeline.datasets.generators import GENERATORS, CaptionShare
from compo_pipeline.datasets.settings import DataSettings
from compo_pipeline.diagnosis.advice import TrainingRun
from compo_pipeline.diagnosis.diagnose import Diagnosis, diagnose
from compo_pipeline.diagnosis.negatives import (
    AskedChanges,
    Negatives,
    RememberedParses,
    asked_changes,
)
from compo_pipeline.diagnosis.options import RuleSetting, Sample, rule_settings
from compo_pipeline.evaluation.contamination import TrainingRows
from compo_pipeline.evaluation.evaluate import BenchmarkItems
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.evaluation.suite import listed_models, score_suite
from compo_pipeline.foils.build import shortage
from compo_pipeline.foils.settings import FoilSettings
from compo_pipeline.language.parsing import load_once, name_and_version, parse_by, parses_of
from compo_pipeline.methods.contract import ViewContext
from compo_pipeline.methods.registry import build
from compo_pipeline.methods.views import EpochViews, ViewSettings, annotated_contents
from compo_pipeline.pipelines.benchmark.nodes import open_models
from compo_pipeline.presentation import diagnosis_page as page
from compo_pipeline.run.provenance import Site
from compo_pipeline.run.seeding import rng
from compo_pipeline.storage.files import files_of
from compo_pipeline.storage.records import Caption, Foil
from compo_pipeline.storage.tables import Splits, Table, training_rows
from compo_pipeline.training.settings import TrainingSettings
from compo_pipeline.versions.settings import RegistrationSettings

VIEWS = 2_000
"""Views that are read at most."""
CAPTIONS = 300
"""Training captions on which rules are measured, at most."""


def describe_training(
    views: Path,
    valid_captions: Sequence[Caption],
    method: str,
    method_settings: Mapping[str, Any],
    view_settings: ViewSettings,
    training: TrainingSettings,
    dataset: str,
    data: DataSettings,
    generator_settings: Mapping[str, Any],
    counterfactuals: CounterfactualSettings,
    language_model: str,
    state: str,
) -> TrainingRun:
    """A model's training, by what decides the kinds of change in its negatives.

    They are counted, and the rules of other methods tried, when they are asked for: this takes
    seconds.
    """
    built = build(method, method_settings["views"], method_settings["objective"])

    def rules() -> Iterable[RuleSetting]:
        sample = _sample(valid_captions, view_settings.split, language_model)
        captions, folders = Table.of(sample.captions, Caption), (data.root, Path(state))
        opening = Opening(counterfactuals.seed, captions, *folders, generator_settings)
        return rule_settings({method: method_settings["views"]}, counterfactuals, opening, sample)

    return TrainingRun(
        method,
        training.epochs,
        partial(_count_changes, views, language_model),
        rules,
        trains_images="image" in built.trains,
        caches_features=training.cache_features,
        frozen=training.frozen,
        ratio=training.wise_ft.before_choice,
        from_table="negatives" in annotated_contents(built, view_settings.from_table),
        dataset=dataset,
        root=str(data.root),
        caption_shares=_caption_shares(data, generator_settings),
    )


def diagnose_models(
    foils: Sequence[Foil],
    foils_report: Mapping[str, Any],
    training_run: TrainingRun,
    models: str,
    model_lists: Mapping[str, Any],
    registration: RegistrationSettings,
    foil_settings: FoilSettings,
    benchmarks: BenchmarksSettings,
    evaluation: EvaluationSettings,
    root: Path,
    embeddings: str,
) -> dict[str, Any]:
    """Diagnosis of each listed model: foil kinds it misses against the first, and advice.

    The foils are those of `benchmarks.foils.split`. The advice is what a training with these
    options should change.

    Raises:
        SettingsError: no kind of foils is used.
    """
    subtasks = gather_foils(benchmarks, foils, Path(root))
    if not subtasks:
        split = benchmarks.foils.split
        why = "it names no set" if split is None else shortage(foils_report, split, foil_settings)
        raise SettingsError(f"benchmarks.foils.split: no foils are used: {why}")
    opened = open_models(models, model_lists, registration, evaluation)
    items, store = BenchmarkItems(subtasks, {}), Path(embeddings)
    _, suite = score_suite(items, opened, evaluation, benchmarks, store, TrainingRows())
    base, rows = suite.comparison.reference, suite.comparison.rows
    return {name: diagnose(rows, base, name, training_run).to_json() for name in suite.names}


def write_diagnoses(
    diagnoses: Mapping[str, Any], models: str, model_lists: Mapping[str, Any], site: Site
) -> dict[str, bytes]:
    """Page of the diagnoses and, per model, an environment of advised settings."""
    found = {name: Diagnosis.from_json(each) for name, each in diagnoses.items()}
    settings = {name: asdict(each) for name, each in listed_models(models, model_lists).items()}
    facts = {**site.facts("diagnosis"), "list": models}
    page.show(found)
    return files_of(partial(page.write, found, settings, facts, site.command))


def _caption_shares(
    data: DataSettings, generator_settings: Mapping[str, Any]
) -> tuple[CaptionShare, ...]:
    """Generator's settings as `CaptionShare`; empty without a generator or for several sources."""
    if data.sources or data.generator is None:
        return ()
    found = GENERATORS[data.generator.format].caption_shares(generator_settings)
    return tuple(CaptionShare(*each) for each in found)


def _count_changes(views: Path, language_model: str) -> AskedChanges:
    """Count the kinds of change in the negatives of a random sample of epoch 0's views."""
    rows = EpochViews(views).epoch(0)
    drawn = sorted(rng("diagnosis", "views").sample(range(len(rows)), min(VIEWS, len(rows))))
    negatives = [Negatives.from_view(rows[place]) for place in drawn]
    return asked_changes(negatives, partial(parses_of, language_model))


def _sample(valid_captions: Sequence[Caption], split: Splits, language_model: str) -> Sample:
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
