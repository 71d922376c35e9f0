"""Wiring of the part `listed_models`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.listed_models.nodes import open_listed_models


def create_pipeline() -> Pipeline:
    """The models of a list, which are loaded one at a time."""
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
