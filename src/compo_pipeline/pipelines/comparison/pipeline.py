"""Wiring of the pipeline `comparison`."""

from __future__ import annotations

from kedro.pipeline import Pipeline

from compo_pipeline.pipelines import step
from compo_pipeline.pipelines.comparison.nodes import compare_cells, run_cells


def create_pipeline() -> Pipeline:
    """Train and compare methods, variants and seeds."""
    return Pipeline(
        [
            step(
                run_cells,
                ["manifest", "valid_captions"],
                "cells",
                set_name="set",
                sets="comparison_sets",
                folder="paths.model_output",
            ),
            step(
                compare_cells,
                ["cells"],
                ["cells_suite", "cells_metrics", "comparison_report"],
                set_name="set",
            ),
        ],
    )
