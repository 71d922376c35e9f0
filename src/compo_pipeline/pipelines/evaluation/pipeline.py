"""Wiring of the pipeline `evaluation`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.evaluation.nodes import (
    choose_cards,
    collect_facts,
    collect_foils,
    compare_models,
    diagnose_run,
    log_comparison,
    log_report,
    open_models,
    score_models,
    write_report,
)


def create_pipeline() -> Pipeline:
    """Kedro pipeline that scores base, control and fine-tuned model, and reports."""
    return Pipeline(
        [
            node(
                open_models,
                inputs=["params:model", "checkpoint", "control_checkpoint", "params:evaluation"],
                outputs="compared_models",
                name="open_models",
            ),
            node(
                score_models,
                inputs=["sliced_items", "compared_models", "run", "params:evaluation"],
                outputs=["scores", "scored_items", "scored_run"],
                name="score_models",
            ),
            node(
                compare_models,
                inputs=[
                    "scored_run",
                    "sliced_items",
                    "training_rows",
                    "params:dataset",
                    "params:evaluation",
                    "params:benchmarks",
                ],
                outputs=["comparison", "metrics"],
                name="compare_models",
            ),
            node(
                log_comparison,
                inputs=["comparison", "run", "params:benchmarks"],
                outputs=None,
                name="log_comparison",
            ),
            node(
                diagnose_run,
                inputs=["comparison", "training_run", "rule_settings"],
                outputs="diagnosis",
                name="diagnose_run",
            ),
            node(
                choose_cards,
                inputs=["comparison", "scores", "benchmark_items", "params:evaluation"],
                outputs="item_cards",
                name="choose_cards",
            ),
            node(
                collect_facts,
                inputs=["comparison", "run", "checkpoint", "params:benchmarks", "params:site"],
                outputs="report_facts",
                name="collect_facts",
            ),
            node(
                collect_foils,
                inputs=[
                    "comparison",
                    "foils",
                    "foils_report",
                    "foils_review",
                    "params:benchmarks",
                    "diagnosis",
                ],
                outputs="foils_section",
                name="collect_foils",
            ),
            node(
                write_report,
                inputs=[
                    "comparison",
                    "item_cards",
                    "quarantine",
                    "training_curves",
                    "foils_section",
                    "report_facts",
                ],
                outputs="report",
                name="write_report",
            ),
            node(
                log_report,
                inputs=[
                    "report",
                    "run",
                    "comparison",
                    "foils_report",
                    "params:foils",
                    "params:benchmarks",
                ],
                outputs=None,
                name="log_report",
            ),
        ],
        namespace="evaluation",
        prefix_datasets_with_namespace=False,
    )
