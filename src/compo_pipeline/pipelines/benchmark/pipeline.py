"""Wiring of the pipeline `benchmark`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.benchmark.nodes import (
    choose_suite_cards,
    hash_training_rows,
    log_suite,
    score_list,
    slice_by_training,
    write_suite_page,
)


def create_pipeline() -> Pipeline:
    """Kedro pipeline that scores a list of models on the benchmarks."""
    return Pipeline(
        [
            node(
                hash_training_rows,
                inputs=["params:suite", "params:data", "params:evaluation"],
                outputs="named_training_rows",
                name="identify_named_rows",
            ),
            node(
                slice_by_training,
                inputs=[
                    "suite_items",
                    "named_captions",
                    "params:evaluation",
                    "params:language.model",
                ],
                outputs="sliced_suite_items",
                name="slice_by_training",
            ),
            node(
                score_list,
                inputs=[
                    "sliced_suite_items",
                    "named_training_rows",
                    "listed_models",
                    "params:evaluation",
                    "params:benchmarks",
                    "params:paths.embeddings",
                ],
                outputs=["suite_scores", "suite"],
                name="score_list",
            ),
            node(
                choose_suite_cards,
                inputs=["suite", "suite_scores", "suite_items", "params:evaluation"],
                outputs="suite_cards",
                name="choose_suite_cards",
            ),
            node(
                write_suite_page,
                inputs=[
                    "suite",
                    "suite_cards",
                    "params:models",
                    "params:benchmarks",
                    "params:site",
                ],
                outputs="suite_report",
                name="write_suite_page",
            ),
            node(
                log_suite,
                inputs=["suite", "suite_report", "params:models"],
                outputs=None,
                name="log_suite",
            ),
        ]
    )
