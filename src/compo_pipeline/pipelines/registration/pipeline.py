"""Wiring of the pipeline `registration`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.registration.nodes import (
    choose_reference,
    collect_evidence,
    export_checkpoint,
    list_base_and_data,
    list_preparation,
    register_export,
)


def create_pipeline() -> Pipeline:
    """Kedro pipeline that exports a trained checkpoint and registers it in MLflow."""
    return Pipeline(
        [
            node(
                collect_evidence,
                inputs=[
                    "comparison",
                    "scores",
                    "scored_items",
                    "checkpoint",
                    "params:registration",
                    "params:tuning.benchmarks",
                ],
                outputs="measured_model",
                name="collect_evidence",
            ),
            node(
                choose_reference,
                inputs=["valid_captions", "params:data.root", "params:evaluation"],
                outputs="reference_source",
                name="choose_reference",
            ),
            node(
                list_base_and_data,
                inputs=[
                    "params:model",
                    "params:dataset",
                    "params:data",
                    "manifest",
                    "valid_captions",
                ],
                outputs="base_and_data",
                name="list_base_and_data",
            ),
            node(
                list_preparation,
                inputs=[
                    "base_and_data",
                    "params:method",
                    "params:language.model",
                    "params:recaption",
                    "params:counterfactuals",
                ],
                outputs="made_from",
                name="list_preparation",
            ),
            node(
                export_checkpoint,
                inputs=[
                    "checkpoint",
                    "run",
                    "made_from",
                    "measured_model",
                    "reference_source",
                    "params:registration",
                    "params:promotion.waive",
                ],
                outputs="export",
                name="export_checkpoint",
            ),
            node(
                register_export,
                inputs=[
                    "export",
                    "run",
                    "manifest",
                    "comparison",
                    "params:registration",
                    "params:data.root",
                ],
                outputs="registered",
                name="register_export",
            ),
        ],
        namespace="registration",
        prefix_datasets_with_namespace=False,
    )
