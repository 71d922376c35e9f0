"""Nodes of the part `benchmark_items`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from compo_pipeline.benchmarks import loading
from compo_pipeline.benchmarks.items import Subtask
from compo_pipeline.benchmarks.settings import BenchmarksSettings
from compo_pipeline.storage.records import Caption, Foil

log = logging.getLogger(__name__)


def gather_items(
    valid_captions: Sequence[Caption],
    foils: Sequence[Foil],
    benchmarks: BenchmarksSettings,
    root: Path,
) -> Sequence[Subtask]:
    """Benchmark items of all enabled benchmarks."""
    subtasks = loading.gather(benchmarks, valid_captions, Path(root), foils)
    if benchmarks.root is None and benchmarks.foils.split is None:
        text = "benchmarks.root is null: models are judged by retrieval over the split '%s' alone."
        log.info(text, benchmarks.retrieval.split)
    return subtasks
