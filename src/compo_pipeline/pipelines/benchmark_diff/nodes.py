"""Nodes of the pipeline `benchmark_diff`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from compo_pipeline.benchmarks.items import Subtask
from compo_pipeline.evaluation.differences import chosen_pair, item_changes, model_diff
from compo_pipeline.evaluation.evaluate import BenchmarkItems, Comparison
from compo_pipeline.evaluation.settings import EvaluationSettings, SuiteSettings
from compo_pipeline.evaluation.suite import Suite
from compo_pipeline.language.parsing import parses_of
from compo_pipeline.presentation import diff_page
from compo_pipeline.presentation.pages import links
from compo_pipeline.run.provenance import Site
from compo_pipeline.storage.files import FolderWriter
from compo_pipeline.storage.records import Caption, ItemChange, Score

log = logging.getLogger(__name__)


def slice_for_diff(
    items: Sequence[Subtask],
    captions: Sequence[Caption],
    evaluation: EvaluationSettings,
    language_model: str,
) -> BenchmarkItems:
    """Benchmark items with all their slices; `binding` needs captions of `suite.training`."""
    kinds = set(evaluation.slices)
    if "binding" in kinds and not captions:
        log.warning("evaluation.slices: binding is left out: suite.training names no captions.")
        kinds.remove("binding")
    return BenchmarkItems.with_slices(items, kinds, captions, partial(parses_of, language_model))


def diff_models(
    suite_scores: Sequence[Score],
    suite: Mapping[str, Any],
    models: str,
    chosen: SuiteSettings,
    items: BenchmarkItems,
    evaluation: EvaluationSettings,
) -> tuple[list[ItemChange], dict[str, Any]]:
    """Items that only one of two models gets right, and the comparison of both as JSON."""
    scored = Suite.from_json(suite)
    pair = chosen_pair(scored, chosen.diff, models)
    changes = list(item_changes(suite_scores, items.subtasks, pair))
    least = evaluation.slice_items
    diff = model_diff(suite_scores, pair, items.slices, least, scored.comparison)
    return changes, diff.to_json()


def write_diff_page(
    item_changes: list[ItemChange],
    benchmark_diff: Mapping[str, Any],
    models: str,
    items: Sequence[Subtask],
    evaluation: EvaluationSettings,
    site: Site,
) -> FolderWriter:
    """Return a function that writes the page comparing two models; prints numbers of changes."""
    diff = Comparison.from_json(benchmark_diff)
    suite = site.page("suite_report"), site.run("benchmark")
    beside = links(site.folder("benchmark_diff_report"), {"All models of the list": suite})
    facts = {**site.facts("benchmark_diff"), "list": models}
    diff_page.show(diff)
    return partial(diff_page.write, diff, item_changes, items, evaluation.gallery, facts, beside)
