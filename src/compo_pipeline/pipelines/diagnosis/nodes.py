"""Nodes of the pipeline `diagnosis`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from compo_pipeline.configuration.settings import SettingsError
from compo_pipeline.counterfactuals.contract import Opening
from compo_pipeline.counterfactuals.settings import CounterfactualSettings
from compo_pipeline.diagnosis.advice import Step, TrainingRun, advise
from compo_pipeline.diagnosis.negatives import (
    AskedChanges,
    Negatives,
    RememberedParses,
    asked_changes,
)
from compo_pipeline.diagnosis.options import RuleSetting, Sample, rule_settings
from compo_pipeline.diagnosis.weaknesses import kind_results, weaknesses
from compo_pipeline.evaluation.comparison import BASE, FINE_TUNED
from compo_pipeline.evaluation.evaluate import Comparison
from compo_pipeline.language.parsing import loaded, name_and_version, parse_by, parses_of
from compo_pipeline.methods.contract import ViewContext
from compo_pipeline.methods.views import EpochViews
from compo_pipeline.presentation import diagnosis_page as page
from compo_pipeline.presentation.pages import links
from compo_pipeline.run.provenance import Site
from compo_pipeline.run.seeding import rng
from compo_pipeline.storage.files import FolderWriter
from compo_pipeline.storage.records import Caption
from compo_pipeline.storage.tables import Splits, Table, training_rows

VIEWS = 2_000
"""Views that are read at most."""
CAPTIONS = 300
"""Training captions on which rules are measured, at most."""


def count_negatives(views: Path, language_model: str) -> AskedChanges:
    """The kinds of change that a random sample of the first epoch's views asks for."""
    rows = EpochViews(views).epoch(0)
    drawn = sorted(rng("diagnosis", "views").sample(range(len(rows)), min(VIEWS, len(rows))))
    negatives = [Negatives.of(rows[place]) for place in drawn]
    return asked_changes(negatives, partial(parses_of, language_model))


def choose_sample(valid_captions: Sequence[Caption], split: Splits, language_model: str) -> Sample:
    """A random sample of the captions that train, with their parses."""
    rows = training_rows(valid_captions, split)
    drawn = sorted(rng("diagnosis", "captions").sample(range(len(rows)), min(CAPTIONS, len(rows))))
    captions = [rows[place] for place in drawn]
    sentences = (
        (row.sample_id, place, text) for row in captions for place, text in enumerate(row.sentences)
    )
    language = name_and_version(loaded(language_model))
    context = ViewContext.of(parse_by(language_model, sentences), language, 0, {})
    return Sample(captions, context, RememberedParses(partial(parses_of, language_model)))


def choose_opening(
    sample: Sample,
    counterfactuals: CounterfactualSettings,
    root: Path,
    state: str,
    generator_settings: Mapping[str, Any],
) -> Opening:
    """What the caption editor is opened with, for the sample."""
    captions = Table.of(sample.captions, Caption)
    return Opening(counterfactuals.seed, captions, Path(root), Path(state), generator_settings)


def list_rule_settings(
    sample: Sample,
    opening: Opening,
    counterfactuals: CounterfactualSettings,
    method: str,
    method_views: Mapping[str, Any],
) -> Callable[[], Iterable[RuleSetting]]:
    """The settings of all methods that list rules of negatives; others than the run's have their
    defaults.
    """
    views = {method: method_views}
    return partial(rule_settings, views, counterfactuals, opening, sample)


def diagnose(
    comparison: Mapping[str, Any],
    asked: AskedChanges,
    settings: Callable[[], Iterable[RuleSetting]],
    method: str,
    epochs: int,
) -> dict[str, Any]:
    """Results by kind, the kinds that are weaknesses, and the steps that are advised.

    Raises:
        SettingsError: no foils were scored.
    """
    rows = Comparison.from_json(comparison).rows
    results = kind_results(rows, BASE, FINE_TUNED, asked)
    if not results:
        raise SettingsError(
            "foils.splits: no foils were scored; name the split that is evaluated, and run "
            "`kedro run --pipelines=foils,evaluation`"
        )
    weak = weaknesses(results, asked)
    kinds = [one.change for one in weak if one.change is not None]
    steps: Sequence[Step] = ()
    if kinds:
        steps = advise(kinds, TrainingRun(method, epochs, asked), settings())
    return page.diagnosis_record(results, weak, steps, asked)


def write_diagnosis(
    diagnosis: Mapping[str, Any], run: Mapping[str, Any], site: Site
) -> FolderWriter:
    """The page, and the environment with the advised settings."""
    facts = {
        **site.facts("diagnosis"),
        "recipe": f"{run['method']}, variant {run['variant']}, seed {run['seed']}",
        "MLflow run": run["run_id"],
    }
    pages = {
        "Report": (site.page("report"), site.run("evaluation")),
        "Views": (site.page("views_preview"), site.run("views")),
    }
    beside = links(site.folder("diagnosis_report"), pages)
    page.show(diagnosis)
    return partial(page.write, diagnosis, facts, beside, site.command)
