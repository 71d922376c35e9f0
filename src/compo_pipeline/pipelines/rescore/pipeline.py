"""Wiring of the pipeline `rescore`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.rescore.nodes import describe_data, describe_scoring, rescore_version


def create_pipeline() -> Pipeline:
    """Kedro pipeline that scores a registered version again and registers it anew."""
    return Pipeline(
        [
            node(
                describe_data,
                inputs=["valid_captions", "manifest", "training_rows", "params:data.root"],
                outputs="rescored_data",
                name="describe_data",
            ),
            node(
                describe_scoring,
                inputs=["sliced_items", "rescored_data", "params:model", "params:evaluation"],
                outputs="benchmarking",
                name="describe_scoring",
            ),
            node(
                rescore_version,
                inputs=[
                    "benchmarking",
                    "params:registration",
                    "params:tracking",
                    "params:promotion.settle",
                ],
                outputs="rescored",
                name="rescore_version",
            ),
        ],
    )
