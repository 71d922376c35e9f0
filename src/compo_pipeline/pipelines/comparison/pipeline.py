"""Wiring of the pipeline `comparison`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.comparison.nodes import (
    choose_cells,
    compare_cells,
    log_cells,
    run_cells,
    write_comparison_page,
)


def create_pipeline() -> Pipeline:
    """Train and compare methods, variants and seeds."""
    return Pipeline(
        [
            node(
                choose_cells,
                inputs=["params:set", "params:comparison_sets", "params:dataset", "params:command"],
                outputs="wanted_cells",
                name="choose_cells",
            ),
            node(
                run_cells,
                inputs=[
                    "wanted_cells",
                    "manifest",
                    "valid_captions",
                    "params:paths.model_output",
                ],
                outputs="cells",
                name="run_cells",
            ),
            node(compare_cells, inputs="cells", outputs="cells_suite", name="compare_cells"),
            node(
                write_comparison_page,
                inputs={
                    "cells": "cells",
                    "suite": "cells_suite",
                    "name": "params:set",
                    "site": "params:site",
                },
                outputs=["cells_metrics", "comparison_report"],
                name="write_comparison_page",
            ),
            node(
                log_cells,
                inputs={
                    "suite": "cells_suite",
                    "page": "comparison_report",
                    "name": "params:set",
                    "dataset": "params:dataset",
                },
                outputs=None,
                name="log_cells",
            ),
        ]
    )
