"""Wiring of the pipeline `evaluation`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.benchmarks.loading import gather
from compo_pipeline.evaluation.contamination import training_rows
from compo_pipeline.evaluation.diagnosis.advice import describe_training
from compo_pipeline.evaluation.diagnosis.diagnose import diagnose
from compo_pipeline.evaluation.evaluate import compare_run, score_run
from compo_pipeline.pipelines.evaluation import nodes


def create_pipeline() -> Pipeline:
    """Score base, control and fine-tuned model on the same items, and write a report."""
    return Pipeline(
        [
            node(
                gather,
                inputs=["params:benchmarks", "valid_captions", "params:data.root", "foils"],
                outputs="benchmark_items",
                name="gather_items",
            ),
            node(
                nodes.slice_items,
                inputs=[
                    "benchmark_items",
                    "valid_captions",
                    "params:evaluation",
                    "params:language.model",
                    "params:views.split",
                ],
                outputs="item_slices",
                name="slice_items",
            ),
            node(
                training_rows,
                inputs=["valid_captions", "facts", "params:views.split"],
                outputs="training_rows",
                name="identify_training_rows",
            ),
            node(
                score_run,
                inputs=[
                    "benchmark_items",
                    "item_slices",
                    "checkpoint",
                    "control_checkpoint",
                    "run",
                    "params:model",
                    "params:evaluation",
                ],
                outputs=["scores", "scored_items", "scored_run"],
                name="score_models",
            ),
            node(
                compare_run,
                inputs=[
                    "scored_run",
                    "benchmark_items",
                    "item_slices",
                    "training_rows",
                    "params:dataset",
                    "params:evaluation",
                    "params:benchmarks",
                ],
                outputs="comparison",
                name="compare_models",
            ),
            node(
                describe_training,
                inputs=[
                    "views",
                    "valid_captions",
                    "params:method",
                    "params:method_settings",
                    "params:views",
                    "params:data",
                    "params:generator_settings",
                    "params:counterfactuals",
                    "params:language.model",
                    "params:paths.counterfactuals_state",
                ],
                outputs="training_run",
                name="describe_training",
            ),
            node(
                diagnose,
                inputs=["comparison", "training_run"],
                outputs="diagnosis",
                name="diagnose_run",
            ),
            node(
                nodes.write_report,
                inputs=[
                    "comparison",
                    "scores",
                    "benchmark_items",
                    "diagnosis",
                    "foils",
                    "foils_report",
                    "foils_review",
                    "training_curves",
                    "run",
                    "checkpoint",
                    "params:evaluation",
                    "params:benchmarks",
                    "params:foils",
                    "params:site",
                ],
                outputs=["report", "metrics"],
                name="write_report",
            ),
        ],
        namespace="evaluation",
        prefix_datasets_with_namespace=False,
    )
