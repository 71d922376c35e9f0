"""The validation pipeline."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.validation.nodes import select_valid_captions, validate_facts


def create_pipeline() -> Pipeline:
    """Caption rows and facts to valid rows and quarantine."""
    return Pipeline(
        [
            node(
                validate_facts,
                inputs=["facts", "unparseable", "params:validation", "params:paths.data_docs"],
                outputs=["quarantine", "validation_result", "data_docs"],
                name="validate_facts",
            ),
            node(
                select_valid_captions,
                inputs=["captions", "quarantine", "validation_result"],
                outputs="valid_captions",
                name="select_valid_captions",
            ),
        ]
    )
