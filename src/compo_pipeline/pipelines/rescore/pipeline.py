"""Wiring of the pipeline `rescore`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.rescore.nodes import rescore_version


def create_pipeline() -> Pipeline:
    """The rescore pipeline."""
    return Pipeline(
        [
            node(
                rescore_version,
                inputs=[
                    "valid_captions",
                    "facts",
                    "manifest",
                    "params:registration",
                    "params:tracking",
                    "params:evaluation",
                    "params:benchmarks",
                    "params:model",
                    "params:data.root",
                    "params:language.model",
                    "params:promotion.settle",
                ],
                outputs="rescored",
                name="rescore_version",
            )
        ]
    )
