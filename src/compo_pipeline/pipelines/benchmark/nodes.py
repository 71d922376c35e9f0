"""Nodes of the pipeline `benchmark`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from compo_pipeline.benchmarks.items import Subtask
from compo_pipeline.benchmarks.loading import from_files
from compo_pipeline.benchmarks.settings import BenchmarksSettings
from compo_pipeline.core.provenance import Site
from compo_pipeline.core.records import ItemChange, Score
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.core.tables import Table
from compo_pipeline.data.generators import GENERATORS
from compo_pipeline.data.settings import DataSettings
from compo_pipeline.evaluation.comparison import by_model, item_changes
from compo_pipeline.evaluation.evaluate import Comparison
from compo_pipeline.evaluation.settings import EvaluationSettings, ListedModel
from compo_pipeline.evaluation.suite import listed_models, score_suite
from compo_pipeline.pages.report import (
    HEADLINES,
    LEFT_OUT,
    MARKDOWN,
    SUITE,
    change_cards,
    suite_page,
)
from compo_pipeline.pages.tables import show
from compo_pipeline.registry.runs import log_figures
from compo_pipeline.registry.settings import RegistrationSettings
from compo_pipeline.registry.verification import open_models


def gather_items(
    benchmarks: BenchmarksSettings, data: DataSettings, generator_settings: Any
) -> list[Subtask]:
    """Items of all enabled benchmarks.

    Generated data are generated first.

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
    return subtasks


def score_listed(
    items: Sequence[Subtask],
    models: str,
    model_lists: Mapping[str, Mapping[str, ListedModel]],
    registration: RegistrationSettings,
    benchmarks: BenchmarksSettings,
    evaluation: EvaluationSettings,
    embeddings: str,
) -> tuple[Table[Score], Comparison]:
    """Score the listed models on every item, and compare each with the first one."""
    listed = listed_models(models, model_lists)
    opened = open_models(listed, evaluation.device, registration.signing, Path(embeddings))
    return score_suite(items, opened, evaluation, benchmarks, Path(embeddings))


def write_report(
    suite: Comparison,
    suite_scores: Sequence[Score],
    items: Sequence[Subtask],
    models: str,
    benchmarks: BenchmarksSettings,
    evaluation: EvaluationSettings,
    site: Site,
) -> tuple[list[ItemChange], dict[str, str | bytes]]:
    """Build the page that compares all models, and log the page and the metrics to MLflow.

    Returns:
        Items that either the first or another model gets right, but not both, and the page's
        files. The page shows some of these items.
    """
    baseline, *others = suite.models
    changes = [
        change for name in others for change in item_changes(suite_scores, items, (baseline, name))
    ]
    facts = {
        **site.facts("benchmark"),
        "list": models,
        "benchmarks": str(benchmarks.root or "folders of their own"),
        **suite.settings,
    }
    count = -(-evaluation.gallery // max(1, len(others)))
    cards = [*change_cards(items, changes, suite, count)]
    page = suite_page(suite, f"Models of the list {models}", facts, cards)
    show(page, HEADLINES, LEFT_OUT)
    files = page.files(SUITE, MARKDOWN)
    log_figures(f"benchmark-{models}", {"models": models}, by_model(suite.rows), files)
    return changes, files
