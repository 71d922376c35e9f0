"""models and benchmarks -> scores, comparison -> page."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.benchmark.nodes import log_suite, score_list, write_suite_page


def create_pipeline() -> Pipeline:
    """The benchmark pipeline."""
    return Pipeline(
        [
            node(
                score_list,
                inputs={
                    "models": "params:models",
                    "model_lists": "params:model_lists",
                    "benchmarks": "params:benchmarks",
                    "evaluation": "params:evaluation",
                    "data": "params:data",
                    "scenes": "params:scenes",
                    "registration": "params:registration",
                    "suite": "params:suite",
                    "embeddings": "params:paths.embeddings",
                    "language_model": "params:language.model",
                },
                outputs=["suite_scores", "suite"],
                name="score_list",
            ),
            node(
                write_suite_page,
                inputs={
                    "suite": "suite",
                    "suite_scores": "suite_scores",
                    "models": "params:models",
                    "benchmarks": "params:benchmarks",
                    "evaluation": "params:evaluation",
                    "command": "params:command",
                    "folder": "params:paths.suite_report",
                    "model_lists": "params:model_lists",
                    "registration": "params:registration",
                    "language_model": "params:language.model",
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
