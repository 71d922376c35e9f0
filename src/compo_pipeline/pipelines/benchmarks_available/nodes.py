"""Nodes of the pipeline `benchmarks_available`."""

from __future__ import annotations

from compo_pipeline.benchmarks.settings import BenchmarksSettings
from compo_pipeline.evaluation.availability import available
from compo_pipeline.presentation.suite_page import show_available


def list_benchmarks(benchmarks: BenchmarksSettings) -> None:
    """Print every known benchmark: its items, or what is missing."""
    show_available(available(benchmarks))
