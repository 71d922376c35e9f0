"""Nodes of the pipeline `benchmark`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from compo_pipeline.benchmarks.loading import from_files
from compo_pipeline.benchmarks.settings import BenchmarksSettings
from compo_pipeline.configuration.settings import SettingsError
from compo_pipeline.datasets.generators import GENERATORS
from compo_pipeline.datasets.settings import DataSettings
from compo_pipeline.evaluation.comparison import by_model
from compo_pipeline.evaluation.contamination import read_training_tables, training_rows
from compo_pipeline.evaluation.differences import item_changes
from compo_pipeline.evaluation.evaluate import BenchmarkItems, Comparison
from compo_pipeline.evaluation.settings import EvaluationSettings, SliceKind, SuiteSettings
from compo_pipeline.evaluation.suite import listed_models, score_suite
from compo_pipeline.language.parsing import parses_of
from compo_pipeline.presentation import suite_page
from compo_pipeline.presentation.item_cards import hardest_cards
from compo_pipeline.run.provenance import Site
from compo_pipeline.storage.records import ItemChange, Score
from compo_pipeline.storage.tables import Table
from compo_pipeline.tracking import runs as tracking
from compo_pipeline.versions.settings import RegistrationSettings
from compo_pipeline.versions.verification import open_models


def gather_items(
    benchmarks: BenchmarksSettings,
    data: DataSettings,
    generator_settings: Any,
    suite: SuiteSettings,
    evaluation: EvaluationSettings,
    language_model: str,
) -> BenchmarkItems:
    """Items of all enabled benchmarks, in slices by attribute-object pairs of training captions.

    The captions are those of `suite.training`; generated data are generated first.

    Raises:
        SettingsError: no benchmark is on.
    """
    root, made = benchmarks.root, data.generated
    if made is not None and root is not None and made.root in Path(root).parents:
        GENERATORS[made.format].generate(generator_settings, made.root)
    subtasks = from_files(benchmarks)
    if not subtasks:
        raise SettingsError(
            "benchmarks: none has a folder of files; name the folder of all at benchmarks.root, or "
            "one at benchmarks.sets.<name>.root"
        )
    captions, _ = read_training_tables(suite.training)
    kinds: set[SliceKind] = {"binding"} if captions and "binding" in evaluation.slices else set()
    parser = partial(parses_of, language_model)
    return BenchmarkItems.with_slices(subtasks, kinds, captions, parser)


def score_models(
    items: BenchmarkItems,
    suite: SuiteSettings,
    data: DataSettings,
    models: str,
    model_lists: Mapping[str, Any],
    registration: RegistrationSettings,
    benchmarks: BenchmarksSettings,
    evaluation: EvaluationSettings,
    embeddings: str,
) -> tuple[Table[Score], Comparison]:
    """Score the listed models on every item, and compare each with the first one."""
    captions, facts = read_training_tables(suite.training)
    known = training_rows(captions, facts, Path(suite.training.root or data.root), evaluation)
    listed = listed_models(models, model_lists)
    opened = open_models(listed, evaluation.device, registration.signing)
    return score_suite(items, opened, evaluation, benchmarks, Path(embeddings), known)


def find_changes(
    suite: Comparison, suite_scores: Sequence[Score], items: BenchmarkItems
) -> list[ItemChange]:
    """Items that a model of the list gets right and the first one wrong, or the other way."""
    baseline, *others = suite.models
    return [
        change
        for name in others
        for change in item_changes(suite_scores, items.subtasks, (baseline, name))
    ]


def write_report(
    suite: Comparison,
    changes: Sequence[ItemChange],
    items: BenchmarkItems,
    models: str,
    benchmarks: BenchmarksSettings,
    evaluation: EvaluationSettings,
    site: Site,
) -> dict[str, str | bytes]:
    """Page of the models side by side, with items on which they differ; prints headline metrics."""
    facts = {
        **site.facts("benchmark"),
        "list": models,
        "benchmarks": str(benchmarks.root or "folders of their own"),
        **suite.settings,
        "training rows": "counted among the items" if suite.overlaps else "none (suite.training)",
    }
    suite_page.show(suite)
    _, *others = suite.models
    count = -(-evaluation.gallery // max(1, len(others)))
    cards = {
        name: hardest_cards(
            items.subtasks, [one for one in changes if one.model == name], suite.benchmarks, count
        )
        for name in others
    }
    return suite_page.files(suite, f"Models of the list {models}", facts, cards)


def log_suite(suite: Comparison, page: Path, models: str) -> None:
    """Log the metrics and the page of a list of models as an MLflow run."""
    figures = by_model(suite.rows)
    tracking.log_figures(f"benchmark-{models}", {"models": models}, figures, page)
