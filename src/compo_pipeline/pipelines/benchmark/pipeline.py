"""Wiring of the pipeline `benchmark`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.benchmark.nodes import log_suite, score_list, write_suite_page

# Inputs of the nodes that load models and score items.
_SCORED = {
    "models": "params:models",
    "model_lists": "params:model_lists",
    "benchmarks": "params:benchmarks",
    "evaluation": "params:evaluation",
    "registration": "params:registration",
    "language_model": "params:language.model",
}


def create_pipeline() -> Pipeline:
    """The benchmark pipeline."""
    return Pipeline(
        [
            node(
                score_list,
                inputs={
                    **_SCORED,
                    "data": "params:data",
                    "scenes": "params:scenes",
                    "suite": "params:suite",
                    "embeddings": "params:paths.embeddings",
                },
                outputs=["suite_scores", "suite"],
                name="score_list",
            ),
            node(
                write_suite_page,
                inputs={
                    **_SCORED,
                    "suite": "suite",
                    "suite_scores": "suite_scores",
                    "command": "params:command",
                    "folder": "params:paths.suite_report",
                },
                outputs="suite_report",
                name="write_suite_page",
            ),
            node(
                log_suite,
                inputs={"suite": "suite", "page": "suite_report", "models": "params:models"},
                outputs=None,
                name="log_suite",
            ),
        ]
    )
