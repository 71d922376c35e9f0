"""Pipeline `benchmarks_available`: which benchmarks are there, and which are missing."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.evaluation.settings import BenchmarksSettings


def list_benchmarks(benchmarks: BenchmarksSettings) -> None:
    """Print every known benchmark: its items, or what is missing."""
    from compo_pipeline.evaluation.availability import available
    from compo_pipeline.presentation.suite_page import show_available

    show_available(available(benchmarks))


def create_pipeline() -> Pipeline:
    """The pipeline that lists the benchmarks."""
    return Pipeline(
        [node(list_benchmarks, inputs="params:benchmarks", outputs=None, name="list_benchmarks")]
    )
