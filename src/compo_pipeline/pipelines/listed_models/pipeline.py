"""Wiring of the part `listed_models`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.listed_models.nodes import open_listed_models


def create_pipeline() -> Pipeline:
    """Kedro pipeline part that gives functions to load the models of a list one by one."""
    return Pipeline(
        [
            node(
                open_listed_models,
                inputs=[
                    "params:models",
                    "params:model_lists",
                    "params:registration",
                    "params:evaluation",
                ],
                outputs="listed_models",
                name="open_listed_models",
            ),
        ]
    )
