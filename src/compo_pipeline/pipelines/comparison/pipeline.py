"""Wiring of the pipeline `comparison`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.comparison.nodes import compare_cells, run_cells


def create_pipeline() -> Pipeline:
    """Train and compare methods, variants and seeds."""
    return Pipeline(
        [
            node(
                run_cells,
                inputs=[
                    "params:set",
                    "params:comparison_sets",
                    "params:dataset",
                    "params:command",
                    "manifest",
                    "valid_captions",
                    "params:paths.model_output",
                ],
                outputs="cells",
                name="run_cells",
            ),
            node(
                compare_cells,
                inputs=["cells", "params:set", "params:dataset", "params:site"],
                outputs=["cells_suite", "cells_metrics", "comparison_report"],
                name="compare_cells",
            ),
        ]
    )
