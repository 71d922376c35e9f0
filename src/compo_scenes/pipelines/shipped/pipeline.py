"""Wiring of the pipeline `shipped`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_scenes.pipelines.shipped.nodes import (
    assemble_pipeline,
    convert_treebank,
    judge_pipeline,
    train_base_model,
    train_image_tower,
    train_networks,
)


def create_pipeline() -> Pipeline:
    """Train the models of the package: the parser (`language`), the base (`pretraining`)."""
    parser = Pipeline(
        [
            node(
                convert_treebank,
                inputs="params:language_model.treebank",
                outputs="treebank",
                name="convert_treebank",
            ),
            node(
                train_networks,
                inputs="treebank",
                outputs="language_networks",
                name="train_networks",
            ),
            node(
                assemble_pipeline,
                inputs="language_networks",
                outputs="language_pipeline",
                name="assemble_pipeline",
            ),
            node(
                judge_pipeline,
                inputs=["language_pipeline", "treebank"],
                outputs="language_accuracy",
                name="judge_pipeline",
            ),
        ],
        namespace="language",
        prefix_datasets_with_namespace=False,
    )
    settings = ["params:pretraining", "params:scenes"]
    base = Pipeline(
        [
            node(
                train_image_tower,
                inputs=settings,
                outputs="image_tower",
                name="train_image_tower",
            ),
            node(
                train_base_model,
                inputs=["image_tower", *settings],
                outputs=["base_model", "pretraining_report"],
                name="train_base_model",
            ),
        ],
        namespace="pretraining",
        prefix_datasets_with_namespace=False,
    )
    return parser + base
