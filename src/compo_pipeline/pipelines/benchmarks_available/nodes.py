"""Nodes of the pipeline `benchmarks_available`."""

from __future__ import annotations

from compo_pipeline.benchmarks.settings import BenchmarksSettings
from compo_pipeline.evaluation.availability import benchmark_availability
from compo_pipeline.presentation.suite_page import show_available


def list_benchmarks(benchmarks: BenchmarksSettings) -> dict[str, list[str]]:
    """Print every known benchmark with items and missing files; returns the missing images."""
    found = benchmark_availability(benchmarks)
    show_available(found)
    return {one.benchmark.name: list(one.absent) for one in found if one.absent}
