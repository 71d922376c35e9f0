"""Nodes of the pipeline `benchmark_diff`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from compo_pipeline.evaluation.benchmarks.loading import from_files
from compo_pipeline.evaluation.contamination import named_rows
from compo_pipeline.evaluation.differences import chosen_pair, item_changes, model_diff
from compo_pipeline.evaluation.evaluate import Comparison
from compo_pipeline.evaluation.settings import BenchmarksSettings, EvaluationSettings, SuiteSettings
from compo_pipeline.evaluation.slices import item_slices
from compo_pipeline.evaluation.suite import Suite
from compo_pipeline.language.parsing import parses_of
from compo_pipeline.presentation import diff_page, suite_page
from compo_pipeline.presentation.pages import links
from compo_pipeline.provenance import page_facts
from compo_pipeline.records import ItemChange, Score

log = logging.getLogger(__name__)


def diff_models(
    suite_scores: Sequence[Score],
    suite: Mapping[str, Any],
    models: str,
    chosen: SuiteSettings,
    benchmarks: BenchmarksSettings,
    evaluation: EvaluationSettings,
    language_model: str,
) -> tuple[list[ItemChange], dict[str, Any]]:
    """The items that one of two models alone has right, and their comparison."""
    scored = Suite.from_json(suite)
    pair = chosen_pair(scored, chosen.diff, models)
    subtasks = from_files(benchmarks)
    changes = list(item_changes(suite_scores, subtasks, pair))
    captions, _ = named_rows(chosen.training)
    kinds = set(evaluation.slices)
    if "binding" in kinds and not captions:
        log.warning("evaluation.slices: binding is left out: suite.training names no captions.")
        kinds.remove("binding")
    slices = item_slices(
        subtasks,
        kinds,
        partial(parses_of, language_model),
        (text for row in captions for text in row.sentences),
    )
    diff = model_diff(suite_scores, pair, slices, evaluation.slice_items, scored.comparison)
    return changes, diff.to_json()


def write_diff_page(
    item_changes: list[ItemChange],
    benchmark_diff: Mapping[str, Any],
    models: str,
    benchmarks: BenchmarksSettings,
    evaluation: EvaluationSettings,
    command: Mapping[str, Any],
    suite_report: str,
    written: str,
) -> Path:
    """Write the page of two models, and print how many items each has right alone."""
    diff = Comparison.from_json(benchmark_diff)
    folder, suite = Path(written), Path(suite_report) / suite_page.PAGE
    beside = links(folder, {"All models of the list": (suite, "kedro run --pipeline=benchmark")})
    subtasks = from_files(benchmarks)
    gallery = evaluation.gallery
    facts = {**page_facts(command, "benchmark_diff"), "list": models}
    diff_page.show(diff)
    return diff_page.write(diff, item_changes, subtasks, gallery, facts, beside, folder)
