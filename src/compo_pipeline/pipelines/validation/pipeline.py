"""Wiring of the pipeline `validation`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.validation import nodes


def create_pipeline() -> Pipeline:
    """Check caption rows against rules, and quarantine bad ones."""
    return Pipeline(
        [
            node(
                nodes.validate_facts,
                inputs=["facts", "unparseable", "ingest_report", "params:validation"],
                outputs=["quarantine", "validation_result", "data_docs"],
                name="validate_facts",
            ),
            node(
                nodes.measure_language,
                inputs=["captions", "params:language.model", "params:validation"],
                outputs="caption_language",
                name="measure_language",
            ),
            node(
                nodes.select_valid_captions,
                inputs=["captions", "quarantine", "validation_result", "caption_language"],
                outputs="valid_captions",
                name="select_valid_captions",
            ),
        ],
        namespace="data",
        prefix_datasets_with_namespace=False,
    )
