"""a set of runs -> their scores -> table and page."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.comparison.nodes import (
    compare_cells,
    log_cells,
    run_cells,
    write_comparison_page,
)


def create_pipeline() -> Pipeline:
    """The comparison pipeline, on valid captions."""
    return Pipeline(
        [
            node(
                run_cells,
                inputs={
                    "name": "params:set",
                    "sets": "params:comparison_sets",
                    "dataset": "params:dataset",
                    "manifest": "manifest",
                    "valid_captions": "valid_captions",
                    "command": "params:command",
                    "folder": "params:paths.model_output",
                    "remote": "params:remote",
                },
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
                    "command": "params:command",
                    "folder": "params:paths.comparison_report",
                },
                outputs=["cells_metrics", "comparison_report"],
                name="write_comparison_page",
            ),
            node(
                log_cells,
                inputs={
                    "cells_metrics": "cells_metrics",
                    "page": "comparison_report",
                    "name": "params:set",
                    "dataset": "params:dataset",
                },
                outputs=None,
                name="log_cells",
            ),
        ]
    )
