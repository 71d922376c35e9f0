"""Wiring of the pipeline `language`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_scenes.pipelines.language.nodes import (
    assemble_pipeline,
    convert_treebank,
    judge_pipeline,
    train_networks,
)


def create_pipeline() -> Pipeline:
    """Kedro pipeline that trains and evaluates compo_en, the shipped spaCy pipeline."""
    return Pipeline(
        [
            node(
                convert_treebank,
                inputs="params:language_model.treebank",
                outputs="treebank",
                name="convert_treebank",
            ),
            node(
                train_networks,
                inputs=["treebank", "params:language_model"],
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
        ]
    )
