"""Wiring of the pipeline `evaluation`."""

from __future__ import annotations

from kedro.pipeline import Pipeline

from compo_pipeline.benchmarks.loading import gather
from compo_pipeline.evaluation.contamination import training_rows
from compo_pipeline.evaluation.diagnosis.diagnose import describe_training, diagnose
from compo_pipeline.evaluation.evaluate import compare_run, score_run
from compo_pipeline.pipelines import step
from compo_pipeline.pipelines.evaluation import nodes


def create_pipeline() -> Pipeline:
    """Score base, control and fine-tuned model on the same items, and write a report."""
    return Pipeline(
        [
            step(
                gather,
                ["params:benchmarks", "valid_captions", "params:data.root", "foils"],
                "benchmark_items",
                "gather_items",
            ),
            step(nodes.slice_items, ["benchmark_items", "valid_captions"], "item_slices"),
            step(
                training_rows,
                ["valid_captions", "facts"],
                "training_rows",
                "identify_training_rows",
            ),
            step(
                score_run,
                ["benchmark_items", "item_slices", "checkpoint", "control_checkpoint", "run"],
                ["scores", "scored_items", "scored_run"],
                "score_models",
                settings="evaluation",
            ),
            step(
                compare_run,
                ["scored_run", "benchmark_items", "item_slices", "training_rows"],
                "comparison",
                "compare_models",
                settings="evaluation",
            ),
            step(
                describe_training,
                ["views", "valid_captions"],
                "training_run",
                view_settings="views",
                state="paths.counterfactuals_state",
            ),
            step(diagnose, ["comparison", "training_run"], "diagnosis", "diagnose_run"),
            step(
                nodes.write_report,
                [
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
                ],
                ["report", "metrics"],
                foil_settings="foils",
            ),
        ],
        namespace="evaluation",
        prefix_datasets_with_namespace=False,
    )
