"""Wiring of the pipeline `pretraining`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_scenes.pipelines.pretraining.nodes import train_base_model, train_image_tower


def create_pipeline() -> Pipeline:
    """Kedro pipeline that trains the shipped base model `scenes-base` on rendered scenes."""
    return Pipeline(
        [
            node(
                train_image_tower,
                inputs=["params:pretraining", "params:scenes"],
                outputs="image_tower",
                name="train_image_tower",
            ),
            node(
                train_base_model,
                inputs=[
                    "image_tower",
                    "params:pretraining",
                    "params:scenes",
                ],
                outputs=["base_model", "pretraining_report"],
                name="train_base_model",
            ),
        ]
    )
