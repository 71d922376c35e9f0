"""Wiring of the pipeline `validation`."""

from __future__ import annotations

from kedro.pipeline import Pipeline

from compo_pipeline.pipelines import step
from compo_pipeline.pipelines.validation import nodes


def create_pipeline() -> Pipeline:
    """Check caption rows against rules, and quarantine bad ones."""
    return Pipeline(
        [
            step(
                nodes.validate_facts,
                ["facts", "unparseable", "ingest_report"],
                ["quarantine", "validation_result", "data_docs"],
            ),
            step(nodes.measure_language, ["captions"], "caption_language"),
            step(
                nodes.select_valid_captions,
                ["captions", "quarantine", "validation_result", "caption_language"],
                "valid_captions",
            ),
        ],
        namespace="data",
        prefix_datasets_with_namespace=False,
    )
